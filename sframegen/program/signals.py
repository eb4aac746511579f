"""Handles signals that end a program: blocks without interruption, interruptible waits, directories that are always removed."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def signals_held() -> Iterator[None]:
    """Hold back the signals in ENDING until the end of the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _WokenError(Exception):
    """Raised by the signal handler to end a wait."""


class Interrupts:
    """A block in which Ctrl-C and similar signals end only `wait`, not the program. A second signal ends the program."""

    def __init__(self) -> None:
        self.number = 0  # the number of the signal that came, or 0
        self._waiting = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        for number in ENDING:
            if (handler := signal.getsignal(number)) is not signal.SIG_IGN:  # nohup ignores SIGHUP
                self._before[number] = handler
                signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type] # the object that getsignal returned

    def _handle(self, number: int, _frame: object) -> None:
        if self.number:
            self.__exit__()
            signal.raise_signal(number)
            return
        self.number = number
        if self._waiting:
            raise _WokenError

    def wait(self, waits: Callable[[], object]) -> None:
        """Call a function that waits. A signal ends the wait; if one has already come, return at once."""
        try:
            self._waiting = True
            if not self.number:
                waits()
        except _WokenError:
            pass
        finally:
            self._waiting = False


class PrivateDirectory:
    """A temporary directory that only this user can access; it is removed even if a signal comes while it is made or removed."""

    def __init__(self) -> None:
        from tempfile import TemporaryDirectory  # noqa: PLC0415 - the import takes longer than the work on a small file

        with signals_held():
            self._directory = TemporaryDirectory(prefix="sframegen.")
        self.name = self._directory.name

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *_: object) -> None:
        with signals_held():
            self._directory.cleanup()
