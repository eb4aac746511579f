"""A table that fills the terminal and is drawn again each second, until q is pressed."""

from __future__ import annotations

import curses
import locale
import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from sframegen.base.errors import SframegenError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

REFRESH = 1.0  # seconds
SHARE = 5  # making a table takes at most one part in that many of the time
HELP = "q: end and print"


class LiveTable:
    """`lines`: makes the table for a width. Use it as a context; the terminal is restored at the end. Raises SframegenError."""

    def __init__(self, lines: Callable[[int], Iterator[str]]) -> None:
        self._lines = lines
        self._due = 0.0
        self._shown: list[str] = []
        self._screen: curses.window | None = None

    def __enter__(self) -> Self:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise SframegenError("--top needs a terminal; without one, use --output, or none")
        locale.setlocale(locale.LC_CTYPE, "")
        os.environ.setdefault("ESCDELAY", "25")
        try:
            self._screen = curses.initscr()
        except curses.error as error:
            raise SframegenError(f"--top: the terminal {os.environ.get('TERM', '')} cannot be used: {error}") from None
        curses.noecho()
        curses.cbreak()
        self._screen.nodelay(True)
        self._screen.keypad(True)
        with suppress(curses.error):  # a terminal that cannot hide it
            curses.curs_set(0)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._screen is not None:
            curses.endwin()
            self._screen = None

    def refresh(self) -> bool:
        """Draw the table if it is due. Return False once q was pressed."""
        assert self._screen is not None
        key = self._screen.getch()
        while key != -1:
            if key in (ord("q"), ord("Q")):
                return False
            if key == curses.KEY_RESIZE:
                self._due = 0.0
            key = self._screen.getch()
        now = time.monotonic()
        if now >= self._due:
            self._shown = [*self._lines(self._screen.getmaxyx()[1] - 1)]
            self._draw()
            self._due = now + max(REFRESH, SHARE * (time.monotonic() - now))
        return True

    def _draw(self) -> None:
        screen = self._screen
        assert screen is not None
        height, width = screen.getmaxyx()
        screen.erase()
        for row, line in enumerate([HELP, *self._shown][:height]):
            try:
                screen.addnstr(row, 0, line, width - 1, curses.A_REVERSE if row == 0 else curses.A_NORMAL)
            except curses.error:  # the window has become smaller meanwhile
                break
        screen.refresh()
