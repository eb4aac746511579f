"""sframegen doctor: it describes whole and damaged installations, ends with status 0, and prints no traceback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from sframegen.backtrace import preloading as module
from sframegen.cli.shared import install_commands as installing
from sframegen.cli.shared import installation
from sframegen.cli.shared.installation import Component, check_components, is_within_bounds
from sframegen.profile.bpf import libbpf
from sframegen.program import libraries
from sframegen.program.build import build_kind
from sframegen.program.libraries import DEPENDENCIES, FLEET, SYMBOL_LIBRARIES
from tests import ROOT
from tests.support.commands import start
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
