"""An exception that nothing expects, while one file is worked on: one line and status 1, and the other files are done."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from sframegen import add_section
from sframegen.base.one_file import TRACEBACK_VARIABLE
from sframegen.elf.file import ElfFile
from sframegen.fleet.output_directory import OutputDirectory
from sframegen.fleet.package_work import work_on
from sframegen.fleet.result_rows import RowOutcome
from sframegen.fleet.run_options import Mode, RunOptions
from sframegen.fleet.sources.items import Item
from tests.support.loops import for_each
from tests.support.peers import Compiler

MARK = b"PLANTED"
# The command line, in which files that end with the mark show a fault: in the process itself, or in those that it forks.
PLANTED = """
import struct, sys
from sframegen.cli.start import main
from sframegen.elf.file import ElfFile

counts = ElfFile._read_counts

def planted(elf):
    if bytes(elf.data[-{length}:]) == {mark!r}:
        raise {exception}
    return counts(elf)

ElfFile._read_counts = planted
main()
"""
EXCEPTIONS = ("IndexError('planted')", "OverflowError('planted\\n')", "RecursionError('planted')", "SystemError('planted')")


def run(*arguments: object, exception: str = EXCEPTIONS[0], **environment: str) -> subprocess.CompletedProcess[str]:
    code = PLANTED.format(length=len(MARK), mark=MARK, exception=exception)
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)


def faults_in(done: subprocess.CompletedProcess[str], *names: str) -> None:
    """The run's standard error has a line for each of these, and nothing else of the kind."""
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if "fault" in line]
    assert len(lines) == len(names), done.stderr
    for line, name in zip(lines, names, strict=True):
        assert name in line
        assert "sframegen fault, please report it: " in line
        assert "planted" in line
    assert done.returncode == 1


@pytest.fixture
def files(tmp_path: Path, compile_c: Compiler) -> Path:
    """A directory with `good` and `bad`, both with sections, and without these `good.plain` and `bad.plain`, and objects."""
    program = compile_c("int main(void) { return 0; }", "-O2")
    made = compile_c("int f(int x) { return x + 1; }", "-O2", "-c", name="f.o")
    for name in ("good", "bad"):
        end = MARK if name == "bad" else b""
        (tmp_path / f"{name}.plain").write_bytes(program.read_bytes() + end)
        (tmp_path / f"{name}.o").write_bytes(made.read_bytes() + end)
        add_section(program, output=tmp_path / name)
        with (tmp_path / name).open("ab") as file:
            file.write(end)
    return tmp_path


LOST = "SystemError('returned NULL without setting an exception')"  # is a MemoryError


@pytest.mark.parametrize("exception", [*EXCEPTIONS, LOST])
@pytest.mark.parametrize("jobs", [1, 2])
def test_every_exception_is_one_line(exception: str, jobs: int, files: Path) -> None:
    before = (files / "bad.plain").read_bytes()
    done = run("add-section", f"-j{jobs}", files / "bad.plain", files / "good.plain", exception=exception)
    if exception == LOST:
        assert (done.returncode, done.stderr) == (1, f"sframegen: {files}/bad.plain: not enough memory\n")
    else:
        faults_in(done, f"{files}/bad.plain")
        assert "good.plain: " in done.stdout
    assert (files / "bad.plain").read_bytes() == before


# What is given between the command and its files, and what is printed for the good one.
COMMANDS: dict[str, tuple[list[str], str, str]] = {
    "add-section": ([], ".plain", "good.plain: "),
    "check": ([], "", "good: "),
    "convert": (["--sframe-version", "2"], "", "good: "),
    "dump": ([], "", "Contents of the SFrame section"),
    "remove": ([], "", "good: "),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_other_files_of_a_run_are_done(command: str, files: Path) -> None:
    options, ending, printed = COMMANDS[command]
    done = run(command, *options, files / f"bad{ending}", files / f"good{ending}")
    faults_in(done, f"{files}/bad{ending}")
    assert printed in done.stdout


def test_commands_with_one_turn(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)
    for arguments in ("lookup bad main", "merge -o merged.o bad.o good.o", "merge -o merged.o good.o bad.o"):
        faults_in(run(*arguments.split()), "")
        assert not (files / "merged.o").exists()


@pytest.mark.parametrize("command", ["add-tree", "remove-tree"])
def test_the_other_files_of_a_tree_are_done(command: str, files: Path) -> None:
    tree = files / "tree"
    tree.mkdir()
    ending = ".plain" if command == "add-tree" else ""
    for name in ("good", "bad", "other"):
        shutil.copy(files / f"{name.replace('other', 'good')}{ending}", tree / name)
    before = {name: (tree / name).read_bytes() for name in ("good", "bad", "other")}
    faults_in(run(command, "-q", tree), f"{tree}/bad")
    assert [name for name in before if (tree / name).read_bytes() == before[name]] == ["bad"]


@pytest.mark.parametrize("command", ["add-section", "remove"])
def test_the_other_files_of_a_package_are_done(command: str, files: Path) -> None:
    ending = ".plain" if command == "add-section" else ""
    package, made = files / "package.tar", files / "made.tar"
    with tarfile.open(package, "w") as tar:
        for name in ("bad", "good"):
            tar.add(files / f"{name}{ending}", name)
    faults_in(run(command, "-q", "-o", made, package), "bad")
    with tarfile.open(package) as before, tarfile.open(made) as after:
        pairs = {name: [tar.extractfile(name) for tar in (before, after)] for name in ("bad", "good")}
        contents = {name: {file.read() for file in both if file} for name, both in pairs.items()}
    assert {name: len(different) for name, different in contents.items()} == {"bad": 1, "good": 2}


def test_the_other_files_of_a_package_in_a_fleet_are_done(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = files / "package.tar"
    with tarfile.open(package, "w") as tar:
        for name in ("bad", "good"):
            tar.add(files / f"{name}.plain", name)
    counts = ElfFile._read_counts

    def planted(elf: ElfFile) -> tuple[int, int, int]:
        if bytes(elf.data[-len(MARK) :]) == MARK:
            raise struct.error("planted")
        return counts(elf)

    monkeypatch.setattr(ElfFile, "_read_counts", planted)
    with OutputDirectory.opened(str(files / "out"), make=True) as out:
        finished = work_on(Item("package.tar", str(package)), RunOptions(Mode.REWRITE), out)
        rows = out.read_result(finished.key).files
    assert finished.outcome is RowOutcome.FAILED
    assert "bad: sframegen fault, please report it: error: planted" in finished.reason
    assert [(row.path, row.outcome) for row in rows] == [("bad", RowOutcome.REFUSED), ("good", RowOutcome.ADDED)]
    assert list((files / "out").rglob("package.tar"))


# Where commands that are given no ELF file begin their work, and their arguments.
ELSEWHERE: dict[str, tuple[str, ...]] = {
    "stack": ("Process", "1"),
    "profile": ("open_session", "1"),
    "doctor": ("command.callback",),
    "integration": ("command.callback",),
}


@for_each("command", ELSEWHERE)
def test_other_commands_end_in_one_line(command: str) -> None:
    place, *arguments = ELSEWHERE[command]
    names = place.split(".")
    code = f"""
import sys
from importlib import import_module
from sframegen.cli.start import main

def planted(*_, **__):
    raise LookupError("planted")

holder = import_module("sframegen.cli.{command}")
for name in {names[:-1]}:
    holder = getattr(holder, name)
setattr(holder, {names[-1]!r}, planted)
main()
"""
    done = subprocess.run([sys.executable, "-c", code, command, *arguments], capture_output=True, text=True, check=False)
    faults_in(done, "")


def test_the_traceback_is_there_for_those_who_ask(files: Path) -> None:
    done = run("add-section", files / "bad.plain", **{TRACEBACK_VARIABLE: "1"})
    assert "Traceback (most recent call last)" in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"sframegen: {files}/bad.plain: sframegen fault, please report it: ")
    assert "(sframegen.elf.file:" in done.stderr
    assert done.returncode == 1
