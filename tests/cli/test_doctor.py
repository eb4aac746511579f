"""sframegen doctor: it describes whole and damaged installations, ends with status 0, and prints no traceback."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from sframegen.backtrace import installed_libraries
from sframegen.backtrace.library_files import PRELOAD
from sframegen.cli.installation import attempts, tried_parts
from sframegen.cli.installation import install_commands as installing
from sframegen.cli.installation.attempts import within
from sframegen.cli.installation.tried_parts import SHELLS, Part, Tried, all_parts, try_all
from sframegen.profile.bpf import kernel_needs, libbpf
from sframegen.program import libraries, patience
from sframegen.program.build import build_kind
from sframegen.program.libraries import DEPENDENCIES, FLEET, SYMBOLS, Requirement
from sframegen.program.patience import Patience
from tests import ROOT

LIBRARIES = ("lief", "capstone", "elftools", "backports.zstd")
DAMAGES = {
    "no Python": ("x =", "SyntaxError: invalid syntax (lief.py, line 1)"),
    "what it needs is missing": ("import nosuch", "ModuleNotFoundError: No module named 'nosuch'"),
    "another project": ("", "AttributeError: module 'lief' has no attribute 'ELF'"),
    "a crash": ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "was killed by signal 11 (Segmentation fault)"),
    "an end": ("import sys\nprint('bye')\nsys.exit('bye')", "ended with status 1"),
    "noise": (
        "import sys\nprint('noise')\nprint('noise', file=sys.stderr)\nraise ValueError('a\\nb\\x1b')",
        "ValueError: a\\nb\\x1b",
    ),
}


def doctor(*options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "sframegen", "doctor", *options]
    return subprocess.run(command, check=False, capture_output=True, text=True, env=os.environ | environ)


def parts_of(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    assert (done.returncode, done.stderr) == (0, "")
    return {part["name"]: part for part in json.loads(done.stdout)["parts"]}


def never() -> str:
    signal.pause()
    return "woken"


def tried(name: str) -> Tried:
    [found] = try_all([part for part in all_parts() if part.name == name])
    return found


def test_a_whole_installation() -> None:
    done = doctor()
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"sframegen {metadata.version('sframegen')} ({build_kind()}), in ")
    assert sys.executable in lines[1]
    for project in ("click", "capstone", "lief", "pyelftools"):
        assert f"  ok  {project}: {metadata.version(project)}" in lines
    assert any(line.startswith("  ok  add-section: ") for line in lines)
    compiled = [line for line in lines if "compiled modules" in line]
    assert [line.split()[0] for line in compiled] == ["ok" if build_kind() == "compiled" else "no"]


def test_an_installation_without_the_object_for_preload(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(installed_libraries, "HERE", tmp_path)
    found = tried("preload")
    assert not found.works
    assert "install a C compiler" in found.found
    (tmp_path / PRELOAD).write_text("not a library")
    assert "does not load: ERROR: ld.so: object" in tried("preload").found


@pytest.mark.once
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_library_costs_its_line(damage: str, tmp_path: Path) -> None:
    text, why = DAMAGES[damage]
    (tmp_path / "lief.py").write_text(text)
    parts = parts_of(doctor("--json", PYTHONPATH=str(tmp_path)))
    assert not parts["lief"]["works"]
    assert why in parts["lief"]["found"]
    assert "pip install" in parts["lief"]["remedy"]
    assert "'lief>=" in parts["lief"]["remedy"]
    assert parts["capstone"]["works"]
    assert parts["add-section"]["works"]


@pytest.mark.once
@pytest.mark.parametrize("damage", ["no Python", "what it needs is missing", "another project"])
@pytest.mark.parametrize("module", ["click", "capstone"])
def test_it_runs_without_click_and_without_capstone(module: str, damage: str, tmp_path: Path) -> None:
    (tmp_path / f"{module}.py").write_text(DAMAGES[damage][0])
    parts = parts_of(doctor("--json", PYTHONPATH=str(tmp_path)))
    assert not parts[module]["works"]
    assert str(tmp_path) in parts[module]["found"]
    assert parts["lief"]["works"]


def test_what_is_not_installed(tmp_path: Path) -> None:
    """An environment of all that is installed here except LIEF and the metadata of sframegen."""
    packages = Path(attempts.__file__).parents[3]
    for entry in packages.iterdir():
        if not entry.name.startswith(("lief", "sframegen-")):
            (tmp_path / entry.name).symlink_to(entry)
    command = [sys.executable, "-S", "-P", "-m", "sframegen", "doctor", "--json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(tmp_path)})
    parts = parts_of(done)
    assert {name: parts[name]["found"] for name in ("lief", "capstone")} == {
        "lief": "not installed",
        "capstone": metadata.version("capstone"),
    }
    assert " install --force-reinstall lief" in parts["lief"]["remedy"]


def test_a_release_that_is_not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = {"capstone": Requirement("capstone", "", "<5.1,>=99")}
    monkeypatch.setattr(attempts, "requirements", lambda: needed)
    monkeypatch.setattr(libraries, "requirements", lambda: needed)
    found = tried("capstone")
    assert not found.works
    assert found.found == f"version {metadata.version('capstone')}, where sframegen needs <5.1,>=99"
    assert found.remedy.endswith("'capstone<5.1,>=99'")


@pytest.mark.parametrize(
    ("version", "bound", "allowed"),
    [
        ("5.0.9", "<5.1,>=5.0.2", True),
        ("5.0.1", "<5.1,>=5.0.2", False),
        ("5.1.0", "<5.1,>=5.0.2", False),
        ("5.1", "<5.1.0", False),
        ("5.0.0.post1", ">=5", True),
        ("8.10.0", ">=8.9", True),
        ("1.0.0rc1", ">=1", True),
        ("unknown", ">=1", False),
        ("1", "", True),
    ],
)
def test_versions_within_bounds(version: str, bound: str, allowed: bool) -> None:
    assert within(version, bound) is allowed


def test_every_dependency_has_a_row() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def names(lines: list[str]) -> set[str]:
        return {match[1] for line in lines if (match := libraries.REQUIREMENT.match(line))}

    assert {one.project for one in DEPENDENCIES} >= names(project["dependencies"]) - {"backports.zstd"}
    assert {one.project for one in DEPENDENCIES} <= names(project["dependencies"])
    assert {one.project for one in FLEET} == names(project["optional-dependencies"]["fleet"])
    assert {one.project for one in SYMBOLS} == names(project["optional-dependencies"]["symbols"])


def test_without_libbpf(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kernel_needs, "PID_NAMESPACE", tmp_path / "none")  # else that is the reason in a container
    monkeypatch.setattr(libbpf, "LIBRARY", "libbpf.so.nosuch")
    libbpf.library.cache_clear()
    for name in ("libbpf.so.1", "walk in the kernel"):
        found = tried(name)
        assert not found.works
        assert found.found.startswith("libbpf.so.nosuch cannot be loaded: install libbpf")


def test_remedies_are_for_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package by its Debian name, or by what other systems find it with; sudo for those who need it."""
    commands = {}
    for manager in ("apt-get", "dnf", "nothing"):
        monkeypatch.setattr("shutil.which", lambda name, here=manager: name if name == here else None)
        monkeypatch.setattr(os, "geteuid", lambda here=manager: 0 if here == "dnf" else 1000)
        commands[manager] = installing.package("rpm2cpio", "/usr/bin/rpm2archive")
    assert commands == {"apt-get": "sudo apt-get install rpm2cpio", "dnf": "dnf install /usr/bin/rpm2archive", "nothing": ""}


@pytest.mark.parametrize(("level", "remedy"), [(3, "kernel.perf_event_paranoid=2"), (2, ""), (None, "")])
def test_perf_events_that_the_level_does_not_forbid_have_no_remedy(
    level: int | None, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sframegen.profile.events.attributes.paranoia", lambda: level)
    [part] = [part for part in tried_parts.all_parts() if part.name == "perf events of own processes"]
    assert part.remedy.rpartition(" ")[2] == remedy


def test_the_build_that_is_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "is_compiled", lambda _: False)
    found = tried("compiled modules")
    assert (found.works, found.found) == (False, "interpreted: all")
    assert "pip install --force-reinstall --no-deps" in found.remedy
    lacking = [("a C compiler", "gcc"), ("Python.h", "python3-dev")]
    monkeypatch.setattr(attempts, "lacks_to_compile", lambda: lacking)
    monkeypatch.setattr(installing, "lacks_to_compile", lambda: lacking)
    found = tried("compiled modules")
    why = "interpreted: all; to compile them, this machine lacks a C compiler (gcc of Debian) and Python.h (python3-dev of Debian)"
    assert found.found == why
    if shutil.which("apt-get"):
        assert "apt-get install gcc python3-dev && " in found.remedy
    monkeypatch.setattr(attempts, "lacks_to_compile", list)
    monkeypatch.setattr(attempts, "is_compiled", lambda name: name != "cfi.scan")
    assert tried("compiled modules").found == "interpreted: cfi.scan"


def test_what_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "current", Patience(part=1))
    [found] = try_all([Part("g", "slow", "u", never, "remedy")])
    assert not found.works
    assert list(found.lines()) == ["no  slow: did not end within 1 second; needed for u", "      remedy"]


@pytest.mark.parametrize("end", ["returns", "raises", "hangs"])
def test_tools_end_with_the_attempt_that_started_them(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool and its child hold a pipe, which has its end at once: both are gone, not only about to be."""
    if end == "hangs":
        monkeypatch.setattr(patience, "current", Patience(part=1))
    reading, writing = os.pipe()

    def attempt() -> str:
        subprocess.Popen(["sh", "-c", "sleep 1000 & wait"], pass_fds=[writing])
        if end == "raises":
            raise attempts.DoesNotWorkError("why")
        return never() if end == "hangs" else "done"

    [found] = try_all([Part("g", "tool", "u", attempt, "")])
    os.close(writing)
    os.set_blocking(reading, False)
    assert os.read(reading, 1) == b""
    os.close(reading)
    assert found.found == {"returns": "done", "raises": "why", "hangs": "did not end within 1 second"}[end]


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_is_found_once_the_remedy_has_run(shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", f"/bin/{shell}")
    monkeypatch.setenv("HOME", str(tmp_path))
    found = tried("completion")
    if found.works:
        pytest.skip(f"completion is installed for all users: {found.found}")
    subprocess.run(["sh", "-c", found.remedy], check=True)
    found = tried("completion")
    assert found.works
    assert found.found.startswith(f"{shell}: {tmp_path}")


def test_files_of_a_shell_that_have_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(attempts, "COMPLETIONS", {"bash": (("/no/share/completion",), ("~/.bashrc", "~/.bash_profile"))})
    (tmp_path / ".bashrc").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / ".bash_profile")
    with pytest.raises(attempts.DoesNotWorkError, match="not installed for bash"):
        attempts.completion("bash")


def test_a_script_named_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "true").write_text("#!/bin/sh\n")
    (tmp_path / "true").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert os.path.realpath(sys.executable) in attempts.add_section()


@pytest.mark.parametrize(("shell", "why"), [("", "SHELL is not set"), ("/bin/\x1bsh", "SHELL is \\x1bsh, which has none")])
def test_a_shell_without_completion(shell: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", shell)
    found = tried("completion")
    assert (found.works, found.found, found.remedy) == (False, why, "")


def test_the_command_imports_no_library_itself() -> None:
    script = "import sys\nfrom sframegen.cli.doctor import text\ntext(as_json=True)\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", script], check=True, capture_output=True, text=True)
    assert set(LIBRARIES) & set(done.stdout.split()) == set()
