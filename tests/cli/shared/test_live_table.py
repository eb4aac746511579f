"""The table that fills a terminal: drawn again, ended with q, and the terminal as it was."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from sframegen.base.errors import SframegenError
from sframegen.cli.shared.live_table import LiveTable

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.sampled

PROGRAM = """
import time
from sframegen.cli.shared.live_table import LiveTable
def lines(width):
    global number
    number += 1
    yield f"table {number}, {width} columns"
    yield "x" * 500
number = 0
with LiveTable(lines) as table:
    while table.refresh():
        time.sleep(0.05)
print("the end")
"""


@contextmanager
def on_a_terminal(term: str = "xterm") -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(ours, (24, 80))
    environment = os.environ | {"TERM": term}
    try:
        with subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
        ) as process:
            os.close(theirs)
            yield process, ours
            process.kill()
    finally:
        os.close(ours)


def read_until(descriptor: int, text: bytes, seconds: float = 100) -> bytes:
    found = b""
    end = time.monotonic() + seconds
    while text not in found and time.monotonic() < end:
        if select.select([descriptor], [], [], 0.1)[0]:
            try:
                part = os.read(descriptor, 4096)
            except OSError:  # the other side is closed
                break
            found += part
    assert text in found, found
    return found


def test_it_is_drawn_again_and_ends_with_q() -> None:
    with on_a_terminal() as (process, terminal):
        before = termios.tcgetattr(terminal)
        read_until(terminal, b"table 1, 79 columns")
        read_until(terminal, b"2")  # what has changed is drawn
        os.write(terminal, b"q")
        read_until(terminal, b"the end")
        assert process.wait(100) == 0
        assert termios.tcgetattr(terminal)[:4] == before[:4]


def test_an_unknown_terminal_is_refused() -> None:
    with on_a_terminal("no-such-terminal") as (_, terminal):
        read_until(terminal, b"--top: the terminal no-such-terminal cannot be used")


def test_without_a_terminal_it_is_refused() -> None:
    table = LiveTable(lambda _width: iter(()))
    with pytest.raises(SframegenError, match="--top needs a terminal"):
        table.__enter__()
