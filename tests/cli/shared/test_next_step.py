"""The last line of a command says what people do next: on a terminal, after success, and nowhere else."""

from __future__ import annotations

import shlex
import sys
from types import SimpleNamespace
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


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """For this line only: click's runner has its own standard error, which is none."""
    terminal = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(module, "sys", SimpleNamespace(stderr=terminal, stdout=sys.stdout))


@pytest.fixture
def place(compile_c: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    program = compile_c("int main(void) { return 0; }", "-Wl,--build-id")
    one = compile_c("int one(void) { return 1; }", "-c", name="one.o")
    for name, source in (("prog", program), ("-prog", program), ("other", program), ("a file", program), ("one.o", one)):
        (tmp_path / name).write_bytes(source.read_bytes())
    (tmp_path / "root").mkdir()
    (tmp_path / "root/prog").write_bytes(program.read_bytes())
    return tmp_path


def said(*arguments: str) -> list[str]:
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == ("missing" in arguments), done.output
    return [line for line in done.stderr.splitlines() if line.startswith("next: ")]


@pytest.mark.usefixtures("place")
def test_success_ends_with_what_to_do_next(request: pytest.FixtureRequest) -> None:
    """On a terminal: not to pipes, not after a refusal, and not where it helps nobody."""
    assert said("add-section", "-o", "piped", "prog") == []
    request.getfixturevalue("on_terminal")
    said("add-section", "-q", "one.o")
    expected = {
        "add-section --dry-run prog": [],
        "add-section --quiet -o quiet prog": [],
        "add-section --json -o json prog": [],
        "add-section -o 'a copy' prog": ["next: sframegen check 'a copy'"],
        "add-section --detached 'a store' prog": ["next: sframegen check --sections 'a store' prog"],
        "add-section other missing": [],
        "add-section prog": ["next: sframegen check prog"],
        "add-section -- -prog 'a file'": ["next: sframegen check ./-prog 'a file'"],
        "merge -o all.o one.o": ["next: sframegen check all.o"],
        "convert --sframe-version 2 -o prog.v2 prog": ["next: sframegen check prog.v2"],
        "add-tree --dry-run root": [],
        "add-tree root": ["next: sframegen check --quiet root"],
    }
    assert {line: said(*shlex.split(line)) for line in expected} == expected


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


@pytest.mark.usefixtures("on_terminal")
@pytest.mark.parametrize("names", [[], ["\x1b[2J"], ["a", "b", "c", "d"]])
def test_names_that_nobody_types_are_left_out(names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    suggest_command("sframegen check {}", *names)
    suggest_viewer(names)
    assert capsys.readouterr().err == ""
