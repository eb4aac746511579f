from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import click
import pytest

import sframegen
from sframegen.base.errors import FormatError
from sframegen.cli import commands
from sframegen.cli.commands import COMMANDS, GROUPS, cli
from sframegen.cli.shared.output import Run
from sframegen.program import build
from tests.support.commands import run, start
from tests.support.loops import for_each

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.peers import Compiler


def test_help_has_the_commands_in_groups_also_where_no_command_is_given() -> None:
    assert sum(map(len, GROUPS.values())) == len(COMMANDS)
    for text in (run("--help").stdout, run().stderr):
        parts = [text.partition(f"\n{group}:\n")[2].partition("\n\n")[0].splitlines() for group in GROUPS]
        assert [[line.split()[0] for line in part if line[2] != " "] for part in parts] == [
            list(group) for group in GROUPS.values()
        ]
        assert len({line.index(line.split()[1], 3) for part in parts for line in part if line[2] != " "}) == 1


def test_an_unknown_command_is_answered_with_those_like_it() -> None:
    likely = {"chek": " Did you mean 'check'?", "add": " Did you mean 'add-section' or 'add-tree'?", "": ""}
    for name, meant in likely.items():
        result = run(name, "file")
        assert (result.exit_code, result.stderr.splitlines()[-1]) == (2, f"Error: No such command '{name}'.{meant}")


@for_each("arguments", [("check",), ("add-section",), ("add-section", "-o"), ("add-tree",)])
def test_a_path_that_is_too_long_is_not_printed_whole(arguments: tuple[str, ...]) -> None:
    done = start(*arguments, *["/bin/sh"] * ("-o" in arguments), "x" * 10_000)
    assert done.returncode in (1, 2)
    last = done.stderr.splitlines()[-1]
    assert "characters] ..." in last
    assert len(last) < 1100


@for_each("arguments", [("check", "file"), ("add-section", "file"), ("add-section", "-o", "out", "/bin/sh"), ("remove", "file")])
def test_that_the_current_directory_is_gone_is_no_fault_of_a_file(arguments: tuple[str, ...], tmp_path: Path) -> None:
    script = 'mkdir "$1" && cd "$1" && rmdir "$1" && shift && exec "$@"'
    command = ["sh", "-c", script, "sh", str(tmp_path / "gone"), sys.executable, "-P", "-m", "sframegen", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "sframegen: the current directory has been removed: change to one that exists\n"


def test_help_imports_no_command() -> None:
    code = """
import sys
from click.testing import CliRunner
from sframegen.cli.commands import cli
assert CliRunner().invoke(cli, ["--help"]).exit_code == 0
print(*[name for name, module in sys.modules.items()
        if name.startswith(("sframegen.", "linker", "cfi", "lief")) and not hasattr(module, "__path__")])
"""
    cli_modules = ["sframegen.cli.shared.command", "sframegen.cli.shared.early_end", "sframegen.cli.commands"]
    light = ["sframegen.base.quick_typing", "sframegen.base.text", "sframegen.program.signals", *cli_modules]
    done = subprocess.run([sys.executable, "-c", code], check=True, text=True, capture_output=True)
    assert sorted(done.stdout.split()) == sorted(light)


NOT_AT_START = {"json", "subprocess", "pathlib", "shutil", "tempfile", "multiprocessing", "importlib.metadata"}
NOT_AT_START |= {"lief", "capstone", "elftools"}


@for_each(("line", "most"), [("--version", 6), ("lookup FILE 0", 52), ("stack 4194304", 91)])
def test_a_short_command_imports_little(line: str, most: int, tmp_path: Path) -> None:
    """What click and Python import themselves, which depends on their releases, is not counted, nor Cython's own parts."""
    with_section = tmp_path / "sh"
    sframegen.add_section("/bin/sh", output=with_section, verify=False)
    program = f"""
import sys, click, __future__
before = set(sys.modules)
import atexit
sys.argv = {["sframegen", *line.replace("FILE", str(with_section)).split()]!r}
atexit.register(lambda: print(*sorted(set(sys.modules) - before), file=sys.stderr))
from sframegen.cli.start import main
main()
"""
    done = subprocess.run([sys.executable, "-P", "-c", program], check=False, capture_output=True, text=True)
    imported = set(done.stderr.splitlines()[-1].split())
    assert NOT_AT_START.isdisjoint(imported)
    assert ("sframegen.cli.commands" in imported) is (line != "--version")
    cython = {"sframegen.base.cython_shadow", build.SHARED_MODULE}
    ours = {name for name in imported if name.partition(".")[0] in ("sframegen", "linker", "cfi")} - cython
    assert len(ours) <= most, ours


@for_each(
    ("code", "needed", "not_needed"),
    [
        (
            "sframegen.add_section('/bin/true', output=sys.argv[1])",
            {"elftools.elf.structs", "linker.inject.verify"},
            {"lief", "elftools.dwarf", "capstone", "multiprocessing", "linker.objects.change_objects"},
        ),
        (
            "sframegen.merge; import linker.merge.merge_objects",
            {"sframegen.api.merging"},
            {"cfi.reader", "sframegen.conversion.convert", "sframegen.checks.check", "sframegen.api.adding"},
        ),
    ],
)
def test_a_function_imports_what_it_needs(code: str, needed: set[str], not_needed: set[str], tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", f"import sys, sframegen; {code}; print(*sys.modules)", str(tmp_path / "true")]
    imported = set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    assert imported >= needed
    assert imported.isdisjoint(not_needed)
    assert len([name for name in imported if name.partition(".")[0] in ("sframegen", "linker", "cfi")]) < 120


def test_wrong_usage_is_status_2() -> None:
    for words in ("--nosuch", "add-tree absent", "add-section -o out a b", "add-section --min-coverage 101 a"):
        result = run(*words.split())
        assert (result.exit_code, result.stdout, "Usage: " in result.stderr) == (2, "", True), words


def test_a_dash_is_a_file_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("dump", "-").stderr == "sframegen: -: No such file or directory\n"


# -- one line and status 1 for what is wrong with a file; the program's own end


def throw(error: Exception) -> None:
    raise error


@for_each(
    ("error", "line"),
    [
        (FormatError("too short", ".eh_frame", 4), "sframegen: app: .eh_frame+0x4: too short\n"),
        (FormatError("too short", file="app.debug"), "sframegen: app.debug: too short\n"),
        (FileNotFoundError(2, "No such file or directory", "dir/app"), "sframegen: dir/app: No such file or directory\n"),
        (OSError("no reflink"), "sframegen: app: no reflink\n"),
        (FormatError("two\nlines\x1b[0m"), "sframegen: app: two\\nlines\\x1b[0m\n"),
    ],
)
def test_errors_of_a_file_are_one_line(error: Exception, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    files = Run()
    with files.working_on("app"):
        throw(error)
    assert files.status == 1
    assert capsys.readouterr() == ("", line)


@for_each(
    ("raised", "status"), [(KeyboardInterrupt(), 130), (click.Abort(), 130), (click.UsageError("so not"), 2), (None, 0), (1, 1)]
)
def test_status_of_the_process(monkeypatch: pytest.MonkeyPatch, raised: BaseException | int | None, status: int) -> None:
    def command(**_options: Any) -> int | None:
        if isinstance(raised, BaseException):
            raise raised
        return raised

    monkeypatch.setattr(cli, "main", command)
    assert commands.run_command() == status


def test_a_name_in_the_last_error_is_in_one_line(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli, "main", lambda **_: throw(OSError(5, "bad", "two\nlines\x1b[0m")))
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    assert commands.run_command() == 1
    assert capfd.readouterr().err == "sframegen: two\\nlines\\x1b[0m: bad\n"


@pytest.fixture(scope="module")
def program(compile_c: Compiler) -> Path:
    source = "\n".join(f"int f{n}(int x) {{ return x + {n}; }}" for n in range(3000)) + "\nint main(void) { return f1(1); }"
    return compile_c(source, "-O1", "-Wa,--gsframe", peer_binutils=True)


def test_closed_pipe_is_no_error(program: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "sframegen", "dump", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as ours:
        assert ours.stdout is not None
        assert ours.stderr is not None
        assert ours.stdout.readline() == "Contents of the SFrame section .sframe:\n"
        ours.stdout.close()
        assert ours.stderr.read() == ""
    assert ours.returncode == 1


def test_full_disk_is_one_line(program: Path) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        result = start("dump", program, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert (result.returncode, result.stderr) == (1, "sframegen: standard output: No space left on device\n")


@for_each("closed", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_closed_streams_change_nothing_else(closed: tuple[int, ...], compile_c: Compiler, tmp_path: Path) -> None:
    """Files would be opened with the numbers of those that are closed, and messages written into them."""
    files = [shutil.copy(compile_c("int f(void) { return 1; }", "-shared"), tmp_path / name) for name in ("one", "two")]
    done = start("add-section", "-j2", *files, tmp_path / "none", preexec_fn=lambda: [*map(os.close, closed)])
    assert (done.returncode, len(done.stdout.splitlines())) == (1, 2 * (1 not in closed))
    assert done.stderr == f"sframegen: {tmp_path / 'none'}: No such file or directory\n" * (2 not in closed)
    assert all(sframegen.read(file).header.num_fdes for file in files)


def test_file_names_go_out_as_they_came_in(program: Path, tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/\xff\xfe"
    os.symlink(program, odd)  # noqa: PTH211 - no str holds this name
    result = subprocess.run([sys.executable, "-m", "sframegen", "dump", odd, odd], check=True, capture_output=True)
    assert result.stdout.count(b"\nFile: " + odd + b"\n") == 2
