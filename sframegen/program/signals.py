"""Signals that end a program, code that they must not interrupt, and a directory that is removed in spite of them."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def signals_held() -> Iterator[None]:
    """Signals wait for the end of the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
