"""Signals that end a program: code that they do not interrupt, waits that they end, a directory that is always removed."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def signals_held() -> Iterator[None]:
    """Signals wait for the end of the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _WokenError(Exception):
    """A signal came during a wait."""


class Interrupts:
    """Within the block, Ctrl-C and similar signals end the sampling, not the program. A second one ends the program too."""

    def __init__(self) -> None:
        self.number = 0  # of the signal
        self._waiting = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        for number in ENDING:
            if (handler := signal.getsignal(number)) is not signal.SIG_IGN:  # nohup
                self._before[number] = handler
                signal.signal(number, self._came)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type] # as it was handed out

    def _came(self, number: int, _frame: object) -> None:
        if self.number:
            self.__exit__()
            signal.raise_signal(number)
            return
        self.number = number
        if self._waiting:
            raise _WokenError

    def wait(self, waits: Callable[[], object]) -> None:
        """Call a function that waits. A signal ends the wait; after one, return at once."""
        try:
            self._waiting = True
            if not self.number:
                waits()
        except _WokenError:
            pass
        finally:
            self._waiting = False


class PrivateDirectory:
    """A directory of this user alone. It is removed at the end of the block, even if a signal comes while it is made or removed."""

    def __init__(self) -> None:
        from tempfile import TemporaryDirectory  # noqa: PLC0415 - takes longer than a small file

        with signals_held():
            self._made = TemporaryDirectory(prefix="sframegen.")
        self.name = self._made.name

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *_: object) -> None:
        with signals_held():
            self._made.cleanup()
