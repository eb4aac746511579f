"""The last line of a command says what people do next: on a terminal, after success, and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from sframegen.cli.commands import cli
from sframegen.cli.shared import output as module
from sframegen.cli.shared.output import Run, suggest_command, suggest_viewer
from sframegen.cli.shared.profile_output import Outputs
from tests.support.named_stacks import EXAMPLE, named

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.peers import Compiler


class Terminal:
    def __init__(self, is_terminal: bool) -> None:
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """For this line only: click's runner has its own standard error, which is none."""

    class Sys:
        stderr = Terminal(is_terminal=True)
        stdout = sys.stdout

    monkeypatch.setattr(module, "sys", Sys)


@pytest.fixture
def place(compile_c: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    program = compile_c("int main(void) { return 0; }", "-Wl,--build-id")
    one = compile_c("int one(void) { return 1; }", "-c", name="one.o")
    for name, source in (("prog", program), ("-prog", program), ("a file", program), ("one.o", one)):
        (tmp_path / name).write_bytes(source.read_bytes())
    (tmp_path / "root").mkdir()
    (tmp_path / "root/prog").write_bytes(program.read_bytes())
    return tmp_path


def said(*arguments: str) -> list[str]:
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    return [line for line in done.stderr.splitlines() if line.startswith("next: ")]


@pytest.mark.usefixtures("on_terminal", "place")
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["add-section", "prog"], "sframegen check prog"),
        (["add-section", "-o", "a copy", "prog"], "sframegen check 'a copy'"),
        (["add-section", "--", "-prog", "a file"], "sframegen check ./-prog 'a file'"),
        (["add-section", "--detached", "a store", "prog"], "sframegen check --sections 'a store' prog"),
        (["merge", "-o", "all.o", "one.o"], "sframegen check all.o"),
        (["add-tree", "root"], "sframegen check --quiet root"),
    ],
)
def test_success_ends_with_what_to_do_next(arguments: list[str], line: str) -> None:
    if arguments[0] == "merge":
        said("add-section", "-q", "one.o")
    assert said(*arguments) == [f"next: {line}"]


@pytest.mark.usefixtures("on_terminal", "place")
def test_after_convert() -> None:
    said("add-section", "-q", "prog")
    assert said("convert", "--sframe-version", "2", "-o", "prog.v2", "prog") == ["next: sframegen check prog.v2"]


@pytest.mark.usefixtures("on_terminal", "place")
@pytest.mark.parametrize(
    "arguments",
    [
        ["add-section", "--quiet", "prog"],
        ["add-section", "--json", "prog"],
        ["add-section", "--dry-run", "prog"],
        ["add-tree", "--dry-run", "root"],
    ],
)
def test_nothing_is_said_where_it_helps_nobody(arguments: list[str]) -> None:
    assert said(*arguments) == []


@pytest.mark.usefixtures("on_terminal")
def test_a_profile_that_is_written_is_shown_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for files, as_json, lines in (
        (("p.html",), False, ["next: xdg-open p.html"]),
        (("p.txt", "p.pb.gz"), False, ["next: go tool pprof -http=: p.pb.gz"]),
        (("p.folded",), False, []),
        (("p.html",), True, []),
        ((), False, []),
    ):
        Outputs(Run(), files, as_json).write(named(*EXAMPLE))
        assert [line for line in capsys.readouterr().err.splitlines() if line.startswith("next: ")] == lines, files


@pytest.mark.usefixtures("on_terminal", "place")
def test_nothing_is_said_after_a_refusal() -> None:
    done = CliRunner().invoke(cli, ["add-section", "prog", "missing"])
    assert done.exit_code == 1
    assert "next: " not in done.stderr


@pytest.mark.usefixtures("place")
def test_nothing_is_said_to_pipes() -> None:
    assert said("add-section", "prog") == []


@pytest.mark.usefixtures("on_terminal")
@pytest.mark.parametrize("names", [[], ["\x1b[2J"], ["a", "b", "c", "d"]])
def test_names_that_nobody_types_are_left_out(names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    suggest_command("sframegen check {}", *names)
    suggest_viewer(names)
    assert capsys.readouterr().err == ""


def test_a_terminal_is_told(place: Path) -> None:
    """With a real one for standard error only."""
    above, below = os.openpty()
    with open(above, "rb", buffering=0) as terminal:  # noqa: PTH123 - a descriptor
        command = [sys.executable, "-P", "-m", "sframegen", "add-section", "prog"]
        done = subprocess.run(command, check=True, cwd=place, stdout=subprocess.PIPE, stderr=below)
        assert terminal.read(1000) == b"next: sframegen check prog\r\n"
        os.close(below)
    assert done.stdout.startswith(b"prog: ")
