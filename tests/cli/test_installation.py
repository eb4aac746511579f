"""Libraries that are missing or damaged: what doctor says, one line elsewhere, and the command for this environment that helps."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sframegen.backtrace import preloading as module
from sframegen.cli.fleet import command as fleet
from sframegen.cli.shared import install_commands as installing
from sframegen.cli.shared import installation
from sframegen.cli.shared.install_commands import describe_import_error, install_command, recompile_command, reinstall_command
from sframegen.cli.shared.installation import Component, check_components, is_within_bounds
from sframegen.profile.bpf import libbpf
from sframegen.program import libraries
from sframegen.program.build import build_kind
from sframegen.program.libraries import DEPENDENCIES, FLEET, SYMBOL_LIBRARIES, find_library
from tests import ROOT
from tests.support.commands import run, start
from tests.support.loops import for_each

DAMAGES = {
    "no Python": ("x =", "{module} cannot be imported: SyntaxError: invalid syntax ({module}.py, line 1)"),
    "what it needs is missing": ("import nosuch", "{module} cannot be imported: ModuleNotFoundError: No module named 'nosuch'"),
    "an end": ("import sys\nsys.exit('bye')", "SystemExit: bye"),
    "noise": ("raise ValueError('a\\nb\\x1b')", "{module} cannot be imported: ValueError: a b\\x1b"),
}


def parts_of(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    assert (done.returncode, done.stderr) == (0, "")
    return {part["name"]: part for part in json.loads(done.stdout)["parts"]}


def part(name: str) -> Component:
    [found] = [part for part in check_components() if part.name == name]
    return found


def test_a_whole_installation() -> None:
    done = start("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"sframegen {metadata.version('sframegen')} ({build_kind()}), in ")
    assert sys.executable in lines[1]
    for project in ("click", "capstone", "lief", "pyelftools"):
        assert f"  ok  {project}: {metadata.version(project)}" in lines
    compiled = [line for line in lines if "compiled modules" in line]
    assert [line.split()[0] for line in compiled] == ["ok" if build_kind() == "compiled" else "no"]


@for_each(
    ("module", "damage"), [*product(["lief"], DAMAGES), *product(["click", "capstone"], ["no Python", "what it needs is missing"])]
)
def test_a_damaged_library_costs_its_line(module: str, damage: str, tmp_path: Path) -> None:
    text, why = DAMAGES[damage]
    (tmp_path / f"{module}.py").write_text(text)
    parts = parts_of(start("doctor", "--json", env=os.environ | {"PYTHONPATH": str(tmp_path)}))
    assert not parts[module]["works"]
    assert why.format(module=module) in parts[module]["found"]
    assert "pip install" in parts[module]["remedy"]
    assert f"'{module}" in parts[module]["remedy"]
    assert parts["capstone" if module == "lief" else "lief"]["works"]


def test_what_is_not_installed(tmp_path: Path) -> None:
    """An environment of all that is installed here except LIEF and the metadata of sframegen."""
    for entry in Path(installation.__file__).parents[3].iterdir():
        if not entry.name.startswith(("lief", "sframegen-")):
            (tmp_path / entry.name).symlink_to(entry)
    command = [sys.executable, "-S", "-P", "-m", "sframegen", "doctor", "--json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(tmp_path)})
    parts = parts_of(done)
    assert {name: parts[name]["found"] for name in ("lief", "capstone")} == {
        "lief": "not installed",
        "capstone": metadata.version("capstone"),
    }
    assert " install lief" in parts["lief"]["remedy"]


def test_a_release_that_is_not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = {"capstone": "capstone<5.1,>=99"}
    monkeypatch.setattr(installation, "requirements", lambda: needed)
    monkeypatch.setattr(libraries, "requirements", lambda: needed)
    found = part("capstone")
    assert not found.works
    assert found.found == f"version {metadata.version('capstone')}, where sframegen needs capstone<5.1,>=99"
    assert found.remedy.endswith("'capstone<5.1,>=99'")


def test_versions_within_bounds() -> None:
    allowed = [("5.0.9", "<5.1,>=5.0.2"), ("5.0.0.post1", ">=5"), ("8.10.0", ">=8.9"), ("1.0.0rc1", ">=1"), ("1", "")]
    others = [("5.0.1", "<5.1,>=5.0.2"), ("5.1.0", "<5.1,>=5.0.2"), ("5.1", "<5.1.0"), ("unknown", ">=1")]
    assert [pair for pair in (*allowed, *others) if is_within_bounds(*pair)] == allowed


def test_every_dependency_has_a_row() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def names(lines: list[str]) -> set[str]:
        return {match[0] for line in lines if (match := libraries.PROJECT.match(line))}

    assert {one.project for one in DEPENDENCIES} >= names(project["dependencies"]) - {"backports.zstd"}
    assert {one.project for one in DEPENDENCIES} <= names(project["dependencies"])
    assert {one.project for one in FLEET} == names(project["optional-dependencies"]["fleet"])
    assert {one.project for one in SYMBOL_LIBRARIES} == names(project["optional-dependencies"]["symbols"])


def test_c_libraries_that_are_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "HERE", tmp_path)
    monkeypatch.setattr(libbpf, "LIBRARY", "libbpf.so.nosuch")
    libbpf.library.cache_clear()
    preload, bpf = part("preload"), part("libbpf.so.1")
    assert (preload.works, bpf.works) == (False, False)
    assert "install a C compiler" in preload.found
    assert bpf.found.startswith("libbpf.so.nosuch cannot be loaded: install libbpf")


@pytest.mark.parametrize(("level", "remedy"), [(3, "kernel.perf_event_paranoid=2"), (2, ""), (None, "")])
def test_perf_events_that_the_level_does_not_forbid_have_no_remedy(
    level: int | None, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sframegen.profile.events.attributes.read_paranoid_level", lambda: level)
    assert part("perf events of own processes").remedy.rpartition(" ")[2] == remedy


def test_the_build_that_is_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "is_compiled", lambda _: False)
    found = part("compiled modules")
    assert (found.works, found.found) == (False, "interpreted: all")
    assert "pip install --force-reinstall --no-deps" in found.remedy
    monkeypatch.setattr(installing, "find_missing_build_tools", lambda: [("a C compiler", "gcc"), ("Python.h", "python3-dev")])
    found = part("compiled modules")
    why = "interpreted: all; to compile them, this machine lacks a C compiler (gcc of Debian) and Python.h (python3-dev of Debian)"
    assert found.found == why
    if shutil.which("apt-get"):
        assert "apt-get install gcc python3-dev && " in found.remedy
    monkeypatch.setattr(installing, "find_missing_build_tools", list)
    monkeypatch.setattr(installation, "is_compiled", lambda name: name != "cfi.scan")
    assert part("compiled modules").found == "interpreted: cfi.scan"


def test_a_part_that_does_not_work_has_its_use_and_its_remedy() -> None:
    assert list(Component("g", "n", "u", False, "why", "command").lines()) == ["no  n: why; needed for u", "      command"]
    assert list(Component("g", "n", "u", True, "1.0").lines()) == ["ok  n: 1.0"]


RAISED = {
    "missing": "raise ModuleNotFoundError(f'No module named {__name__!r}', name=__name__)",
    "no shared library": "raise ImportError('libnone.so.1: cannot open\\nshared object file', name=__name__)",
    "OSError": "raise OSError('broken\\nlibrary')",
    "RuntimeError": "raise RuntimeError('broken library')",
    "SystemError": "raise SystemError('initialization failed')",
    "its own words": "raise ImportError('ERROR: fail to load the dynamic library.')",
    "no Python": "x =",
    "another project": "",
}
# What needs each, and the requirement that its remedy has.
NEEDED_BY = {
    "click": (("check", "/bin/true"), "'click>="),
    "elftools": (("add-section",), "'pyelftools<"),
    "capstone": (("add-section", "--synthesize", "--no-verify"), "'capstone<"),
}


def without(module: str, how: str, folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    (folder / f"{module}.py").write_text(RAISED[how])
    return start(*arguments, env=os.environ | {"PYTHONPATH": str(folder)})


@pytest.mark.parametrize("how", RAISED)
@for_each("module", NEEDED_BY)
def test_one_line_with_the_remedy(module: str, how: str, tmp_path: Path) -> None:
    arguments, requirement = NEEDED_BY[module]
    file = tmp_path / "true"
    file.write_bytes(Path("/bin/true").read_bytes())
    before = file.read_bytes()
    done = without(module, how, tmp_path, *arguments, *[file] * (module != "click"))
    [line] = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert line.startswith("sframegen: ")
    assert module in line
    _, _, remedy = line.partition("; to install it: ")
    assert remedy.startswith(f"{shlex.quote(sys.executable)} -m pip install ")
    assert requirement in remedy
    assert ("--force-reinstall" in remedy) is (how != "missing")
    assert file.read_bytes() == before


def test_what_the_system_lacks_is_installed_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Installing LIEF again does not bring the C++ library. sudo is for those who need it."""
    reason = "lief cannot be imported: ImportError: libstdc++.so.6: cannot open shared object file: No such file or directory"
    for manager, user, remedy in (
        ("apt-get", 1000, "; to install it: sudo apt-get install libstdc++6"),
        ("dnf", 0, "; to install it: dnf install 'libstdc++.so.6()(64bit)'"),
        ("", 0, ""),
    ):
        monkeypatch.setattr(shutil, "which", lambda name, manager=manager: name if name == manager else None)
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        assert describe_import_error(ImportError(reason, name="lief")) == reason + remedy


@for_each("how", ["RuntimeError", "SystemError", "another project"])
def test_results_are_read_back_with_the_other_library(how: str, tmp_path: Path) -> None:
    """Where a library was not asked for by name, one that works is taken."""
    script = "from linker.files.read_back import *; import_for_many(MIN_FILES_FOR_LIEF); print(choose_reader(1))"
    (tmp_path / "lief.py").write_text(RAISED[how])
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-P", "-c", script], check=False, capture_output=True, text=True, env=environment)
    assert (done.stdout, done.stderr) == ("elftools\n", "")


def test_check_does_not_take_a_damaged_library_for_its_own_fault(tmp_path: Path) -> None:
    import sframegen  # noqa: PLC0415 - for this test only

    file = tmp_path / "true"
    sframegen.add_section("/bin/true", output=file, verify=False)
    done = without("elftools", "RuntimeError", tmp_path, "check", "--second-reader", file)
    assert done.stderr.startswith(f"sframegen: {file}: elftools")
    assert "; to install it: " in done.stderr
    assert "fault" not in done.stderr


def test_who_asks_for_source_lines_learns_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sframegen.cli.profile.find_spec", lambda _: None)
    result = run("profile", "--lines", "--", "true")
    assert result.exit_code == 1
    assert "sframegen: source lines and inlined functions need symbolic; to install it: " in result.stderr


def test_one_machine_needs_no_dask(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("fsspec")
    (tmp_path / "pool").mkdir()
    with tarfile.open(tmp_path / "pool/it.tar", "w") as archive:
        archive.add("/bin/true", "bin/true")
    done = without("distributed", "missing", tmp_path, "fleet", "run", tmp_path / "pool", "-o", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("1 package (1 added), 1 ELF file")


CLICK, CAPSTONE, LIEF, *_ = DEPENDENCIES
NEEDED = {"click": "click>=8", "lief": "lief>=1", "fsspec": "fsspec[http]>=2025.1"}


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A virtual environment with pip, in the directory `name`; no tool is on PATH, and sframegen came from no directory."""
    prefix = tmp_path / "name"
    (prefix / "stdlib").mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(prefix / "bin" / "python"))
    monkeypatch.setattr(installing, "find_spec", lambda _: object())
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(prefix / "stdlib"))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(libraries, "requirements", lambda: NEEDED)
    monkeypatch.setattr(installing, "installed_from", lambda: "")
    return prefix


def on_path(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if name in names else None)


def test_pip_in_a_virtual_environment(environment: Path) -> None:
    python = f"{environment}/bin/python"
    fsspec = next(one for one in FLEET if one.project == "fsspec")
    assert install_command([CLICK, fsspec]) == f"{python} -m pip install 'click>=8' 'fsspec[http]>=2025.1'"
    assert install_command([CLICK], again=True) == f"{python} -m pip install --force-reinstall 'click>=8'"


def test_uv_where_there_is_no_pip(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installing, "find_spec", lambda _: None)
    python = f"{environment}/bin/python"
    assert install_command([LIEF]) == f"{python} -m ensurepip && {python} -m pip install 'lief>=1'"
    on_path(monkeypatch, "uv")
    assert install_command([LIEF]) == f"uv pip install --python {python} 'lief>=1'"
    assert install_command([LIEF], again=True) == f"uv pip install --python {python} --reinstall 'lief>=1'"
    on_path(monkeypatch)
    (environment / "uv-receipt.toml").touch()  # uv's own environment of a tool
    assert install_command([CLICK]) == f"uv pip install --python {python} 'click>=8'"


def test_pipx(environment: Path) -> None:
    (environment / "pipx_metadata.json").touch()
    assert install_command([LIEF]) == "pipx inject name 'lief>=1'"
    assert install_command([LIEF], again=True) == "pipx inject --force name 'lief>=1'"
    assert reinstall_command(from_sources=True).startswith("pipx runpip name install --force-reinstall --no-deps . ")


def test_the_package_of_a_distribution(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip may not change its Python. What Debian has comes from there; all else goes into an environment that sees it."""
    monkeypatch.setattr(sys, "base_prefix", str(environment))
    (environment / "stdlib" / "EXTERNALLY-MANAGED").touch()
    on_path(monkeypatch, "apt-get")
    assert install_command([CLICK, CAPSTONE]) == "sudo apt-get install python3-click python3-capstone"
    assert install_command([CLICK], again=True) == "sudo apt-get install --reinstall python3-click"
    command = install_command([LIEF])
    assert f"{environment}/bin/python -m venv --system-site-packages ~/.local/share/sframegen && " in command
    assert " && ~/.local/share/sframegen/bin/python -m pip install 'lief>=1'  # then run " in command


def test_it_is_installed_again_from_where_it_came(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel is installed again, but nothing is compiled from it."""
    no_sources = " --no-deps .  # in a checkout of sframegen"
    assert reinstall_command(from_sources=True).endswith(no_sources)
    checkout, wheel = environment / "a checkout", environment / "sframegen.whl"
    checkout.mkdir()
    wheel.touch()
    install = f"{environment}/bin/python -m pip install --force-reinstall"
    monkeypatch.setattr(installing, "installed_from", lambda: str(checkout))
    assert reinstall_command(from_sources=True) == f"{install} --no-deps '{checkout}'"
    monkeypatch.setattr(installing, "installed_from", lambda: str(wheel))
    assert reinstall_command() == f"{install} {wheel}"
    assert reinstall_command(from_sources=True).endswith(no_sources)


@pytest.mark.parametrize(
    ("compiler", "header", "packages"),
    [(False, False, "gcc python3-dev"), (True, False, "python3-dev"), (False, True, "gcc"), (True, True, "")],
)
def test_what_lacks_to_compile_is_installed_first(
    compiler: bool, header: bool, packages: str, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path(monkeypatch, "apt-get", *["cc"] * compiler)
    if header:
        (environment / "stdlib" / "Python.h").touch()
    first, _, rest = recompile_command().rpartition(" && ")
    assert first == (f"sudo apt-get install {packages}" if packages else "")
    assert " -m pip install --force-reinstall --no-deps " in rest


def test_no_index_is_asked_for_sframegen(environment: Path) -> None:
    assert environment.exists()
    for command in (install_command(DEPENDENCIES), install_command(FLEET), reinstall_command(), recompile_command()):
        assert "sframegen" not in shlex.split(command.partition("#")[0])
        assert "sframegen[" not in command


@for_each(
    ("module", "project"),
    [("elftools.elf.elffile", "pyelftools"), ("debian", "python-debian"), ("click", "click"), ("clicks", None), (None, None)],
)
def test_the_library_of_a_module(module: str | None, project: str | None) -> None:
    library = find_library(module)
    assert (library and library.project) == project
    assert describe_import_error(ImportError("no\nway", name="other")) == "no way"


def test_without_the_extra_there_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a command that installs what is missing: releases that pyproject.toml allows, of projects that an index has."""
    monkeypatch.setattr("sframegen.cli.fleet.find_spec", lambda _: None)
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["fleet"]
    named = set()
    run = ["run", str(tmp_path), "--output", str(tmp_path / "out")]
    for arguments in (run, [*run, "--scheduler", "tls://host:1"]):
        result = CliRunner().invoke(fleet, arguments)
        [line] = result.output.splitlines()
        what, _, remedy = line.partition("; to install them: ")
        assert (result.exit_code, what.startswith(f"sframegen: sframegen fleet {arguments[0]} needs ")) == (1, True)
        assert remedy.startswith(f"{shlex.quote(sys.executable)} -m pip install ")
        assert ("distributed" in what) is ("--scheduler" in arguments)
        named |= set(shlex.split(remedy)[4:])
    assert named == set(extra)
    assert not (tmp_path / "out").exists()


@for_each(
    ("options", "why"),
    [
        (["--memory", "much"], "'much' is not a size such as 512M or 4G"),
        (["--memory", "100"], "100 is out of range for a package (minimum 256M)"),
        (["--scheduler", "tcp://127.0.0.1:1", "-j", "2"], "--scheduler and --jobs exclude each other"),
        (["--scheduler", "tcp://host:0"], "'tcp://host:0' is not an address such as tcp://HOST:PORT"),
        # Dask takes what is before the port as the host; parts of a URL would make it look like this machine
        (["--scheduler", "tcp://192.0.2.1@localhost:1"], "'tcp://192.0.2.1@localhost:1' is not an address"),
        (["--scheduler", "tcp://localhost#.example:1"], "'tcp://localhost#.example:1' is not an address"),
        (["--scheduler", "tcp://?example:1"], "'tcp://?example:1' is not an address"),
        (["--scheduler", "http://host:8786"], "'http://host:8786' is not an address such as tcp://HOST:PORT"),
        (["--mode", "other"], "'other' is not one of"),
        (["--scheduler", "ws://192.0.2.1:8786"], "ws://192.0.2.1:8786 is on another machine and not encrypted"),
    ],
)
def test_wrong_usage_of_fleet(tmp_path: Path, options: list[str], why: str) -> None:
    result = CliRunner().invoke(fleet, ["run", str(tmp_path), "--output", str(tmp_path / "out"), *options])
    assert result.exit_code == 2
    assert why in result.output
    assert not (tmp_path / "out").exists()
