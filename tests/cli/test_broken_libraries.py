"""A library that is missing or damaged, in whatever way, costs one line with the command that installs it; never a traceback."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from sframegen.cli.shared.install_commands import describe_import_error
from tests.support.commands import run, start
from tests.support.loops import for_each

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
