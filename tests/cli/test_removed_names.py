"""Commands and options that are gone: status 2, and one line that names what to use instead."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from sframegen.cli.commands import cli
from sframegen.cli.removed_names import REMOVED


@pytest.mark.parametrize("name", REMOVED)
def test_what_to_use_instead(name: str) -> None:
    result = CliRunner().invoke(cli, [*name.split(), "value"])
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == f"Error: {name}: {REMOVED[name]}"


def test_other_unknown_options_are_as_before() -> None:
    result = CliRunner().invoke(cli, ["stack", "--cores", "value"])
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith("Error: No such option")
