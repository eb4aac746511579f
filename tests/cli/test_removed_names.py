from __future__ import annotations

from typing import TYPE_CHECKING

from click.testing import CliRunner

from sframegen.cli.commands import cli
from sframegen.cli.removed_names import REMOVED, RENAMED

if TYPE_CHECKING:
    import pytest


def test_a_name_that_is_gone_ends_in_one_line_that_says_what_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("weave", "check --colour", "fleet run --colour", "convert --optimize rainbow"):
        monkeypatch.setitem(REMOVED, name, "another thing")
    wrong = {}
    for name, instead in REMOVED.items():
        result = CliRunner().invoke(cli, name.split())
        says = instead if instead.startswith(": ") else f"; use {instead}"
        if (result.exit_code, result.output) != (2, f"Error: {name} was removed{says}\n") or "nothing" in instead:
            wrong[name] = result.output
    assert wrong == {}


def test_an_old_name_works_and_a_note_has_the_new_one() -> None:
    values = {"--format": ["2"]}
    for name, present in RENAMED.items():
        command, _, old = name.rpartition(" ")
        for words in ([old, *values.get(old, [])], ["=".join([old, *values.get(old, [])])]):
            note, *rest = CliRunner().invoke(cli, [*command.split(), *words, "--nope"]).stderr.splitlines()
            assert note == f"sframegen: {old} is now {present}; the old name works until 1.1"
            assert rest[-1].startswith("Error: No such option")
            assert "--nope" in rest[-1]


def test_options_of_a_linker_are_no_old_names() -> None:
    """GNU ld has --format."""
    result = CliRunner().invoke(cli, ["link", "false", "--format=binary", "--fatal"])
    assert (result.exit_code, result.stderr) == (1, "")
