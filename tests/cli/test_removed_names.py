from __future__ import annotations

from typing import TYPE_CHECKING

from click.testing import CliRunner

from sframegen.cli.commands import cli
from sframegen.cli.removed_names import REMOVED

if TYPE_CHECKING:
    import pytest


def test_a_name_that_is_gone_ends_in_one_line_that_says_what_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("weave", "check --colour", "fleet run --colour", "convert --optimize rainbow"):
        monkeypatch.setitem(REMOVED, name, "another thing")
    wrong = {}
    for name, instead in REMOVED.items():
        result = CliRunner().invoke(cli, name.split())
        if (result.exit_code, result.output) != (2, f"Error: {name} was removed; use {instead}\n"):
            wrong[name] = result.output
    assert wrong == {}
