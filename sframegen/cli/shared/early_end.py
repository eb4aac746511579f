"""Ends the program early: after signals, and if a file becomes shorter while it is read."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from sframegen.base.text import printable
from sframegen.program.signals import ENDING

if TYPE_CHECKING:
    from collections.abc import Iterator

SOON = 0.001  # seconds
HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)


class EndedError(SystemExit):
    """The end of the program by a signal: temporary files are removed, and nothing is printed."""


def _end(number: int, _frame: object) -> NoReturn:
    """Raise EndedError, and ignore further signals."""
    for other in ENDING:
        signal.signal(other, lambda *_: None)
    signal.signal(signal.SIGALRM, lambda *_: _end(number, None))
    raise EndedError(128 + number)


def _unraisable(what: sys.UnraisableHookArgs) -> None:
    """Repeat the signal if Python has dropped EndedError, as it does with exceptions in callbacks."""
    if isinstance(what.exc_value, EndedError):
        signal.setitimer(signal.ITIMER_REAL, SOON)
    else:
        sys.__unraisablehook__(what)


@contextmanager
def ended_in_one_line() -> Iterator[None]:
    """Run the block so that a signal raises EndedError, and a file that becomes shorter ends the program with one line."""
    before = {number: signal.getsignal(number) for number in (*ENDING, signal.SIGALRM)}
    hook, sys.unraisablehook = sys.unraisablehook, _unraisable
    for number in ENDING:
        if before[number] is not signal.SIG_IGN:  # nohup
            signal.signal(number, _end)
    library = ctypes.CDLL(None)
    library.signal.restype = ctypes.c_void_p
    library.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    on_bus_error = HANDLER(_bus_error)  # not one of Python's, which run too late: the same read would fail for ever
    earlier = library.signal(signal.SIGBUS, ctypes.cast(on_bus_error, ctypes.c_void_p))
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGALRM) is not before[signal.SIGALRM]:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = hook
        library.signal(signal.SIGBUS, earlier)


def _bus_error(_number: int) -> NoReturn:
    try:
        line = f"sframegen: {printable(_find_shortened() or 'a file')}: it was truncated while being read\n"
        os.write(2, os.fsencode(line))
    finally:
        os._exit(1)


def _find_shortened() -> str:
    """Return a file that is shorter than its mapping; empty if there is none."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:  # noqa: PTH123
        for line in maps:
            span, _, offset, _, _, *path = line.rstrip("\n").split(maxsplit=5)
            start, end = (int(address, 16) for address in span.split("-"))
            name = path[0].strip() if path else ""
            try:
                size = os.stat(name).st_size if name.startswith("/") else sys.maxsize  # noqa: PTH116
            except OSError:
                continue
            if size <= int(offset, 16) + end - start - mmap.PAGESIZE:
                return name
    return ""
