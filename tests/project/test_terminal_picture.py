"""tools/terminal_picture.py: a recording of a terminal as a picture, whose text can be selected."""

from __future__ import annotations

import subprocess
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from tests import ROOT
from tools import terminal_picture
from tools.terminal_picture import COLUMNS, COMMANDS, Printed

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.once

SVG = "{http://www.w3.org/2000/svg}"


def texts(lines: str) -> list[str]:
    return ["".join(element.itertext()) for element in ET.fromstring(lines).iter(f"{SVG}text")]


def test_commands_and_what_they_print_are_recorded_in_order(tmp_path: Path) -> None:
    commands = ["printf 'one\\n\\033[1mtwo\\033[0m\\n'", "echo three >&2", "test -t 1 && pwd"]
    found = list(terminal_picture.recorded(commands, tmp_path))
    assert [(one.text, one.typed) for one in found] == [
        (commands[0], True),
        ("one", False),
        ("two", False),
        (commands[1], True),
        ("three", False),
        (commands[2], True),
        (str(tmp_path), False),
    ]
    assert [one.seconds for one in found] == sorted(one.seconds for one in found)


def test_a_command_that_fails_ends_the_recording(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        list(terminal_picture.recorded(["exit 3"], tmp_path))


def test_text_is_text_and_long_lines_are_broken() -> None:
    drawn = "".join(
        terminal_picture.picture([Printed(0.5, "echo '<b>' &", typed=True), Printed(1, "x" * (COLUMNS + 1), typed=False)])
    )
    assert texts(drawn) == ["$ echo '<b>' &", "x" * COLUMNS, "x"]


def test_the_picture_of_the_pages_shows_the_commands() -> None:
    drawn = (ROOT / "docs/first-minute.svg").read_text()
    assert len(drawn) < 20_000
    assert [text.removeprefix("$ ") for text in texts(drawn) if text.startswith("$ ")] == list(COMMANDS)
