"""Ends the program early, without a traceback: after signals, and if a mapped file is truncated while it is read."""

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

RETRY_DELAY = 0.001  # seconds until a dropped signal is repeated
SignalHandler = ctypes.CFUNCTYPE(None, ctypes.c_int)


class EndedError(SystemExit):
    """Ends the program after a signal. It is an exception so that temporary files are removed; it prints nothing."""


def _raise_ended(number: int, _frame: object) -> NoReturn:
    """Raise EndedError, and ignore further signals, so that they do not interrupt the clean-up."""
    for other in ENDING:
        signal.signal(other, lambda *_: None)
    signal.signal(signal.SIGALRM, lambda *_: _raise_ended(number, None))  # see _repeat_dropped_signal
    raise EndedError(128 + number)


def _repeat_dropped_signal(unraisable: sys.UnraisableHookArgs) -> None:
    """Schedule SIGALRM to raise EndedError again if Python has dropped it, as it drops exceptions in callbacks."""
    if isinstance(unraisable.exc_value, EndedError):
        signal.setitimer(signal.ITIMER_REAL, RETRY_DELAY)
    else:
        sys.__unraisablehook__(unraisable)


@contextmanager
def handle_early_ends() -> Iterator[None]:
    """Run the block so that a signal raises EndedError, and a truncated file ends the program with one line."""
    earlier_handlers = {number: signal.getsignal(number) for number in (*ENDING, signal.SIGALRM)}
    earlier_hook, sys.unraisablehook = sys.unraisablehook, _repeat_dropped_signal
    for number in ENDING:
        if earlier_handlers[number] is not signal.SIG_IGN:  # as nohup sets it for SIGHUP
            signal.signal(number, _raise_ended)
    library = ctypes.CDLL(None)
    library.signal.restype = ctypes.c_void_p
    library.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    # A handler of Python's own would run only after the read, which raises SIGBUS again: it would repeat for ever.
    on_bus_error = SignalHandler(_exit_on_bus_error)
    earlier_bus_handler = library.signal(signal.SIGBUS, ctypes.cast(on_bus_error, ctypes.c_void_p))
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGALRM) is not earlier_handlers[signal.SIGALRM]:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in earlier_handlers.items():
            signal.signal(number, handler)
        sys.unraisablehook = earlier_hook
        library.signal(signal.SIGBUS, earlier_bus_handler)


def _exit_on_bus_error(_number: int) -> NoReturn:
    try:
        line = f"sframegen: {printable(_find_truncated_file() or 'a file')}: it was truncated while being read\n"
        os.write(2, os.fsencode(line))
    finally:
        os._exit(1)


def _find_truncated_file() -> str:
    """Return the path of a file that is shorter than its mapping in this process; empty if there is none."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:  # noqa: PTH123
        for line in maps:
            addresses, _, offset, _, _, *path = line.rstrip("\n").split(maxsplit=5)
            start, end = (int(address, 16) for address in addresses.split("-"))
            name = path[0].strip() if path else ""
            try:
                size = os.stat(name).st_size if name.startswith("/") else sys.maxsize  # noqa: PTH116
            except OSError:
                continue
            if size <= int(offset, 16) + end - start - mmap.PAGESIZE:
                return name
    return ""
