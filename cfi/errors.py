"""The base of all errors about a file, or about the change to it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class SframegenError(Exception):
    """Base of the package's own errors. `str()` is one line: `app.so: .eh_frame+0x1a4: expected 4 bytes, have 2`."""

    message: str  #: what is wrong, without the place
    place: str  #: name of a section or table, or ""
    offset: int | None  #: bytes from the start of that place
    file: str  #: path, or ""; set by whoever knows it

    def __init__(self, message: str, place: str = "", offset: int | None = None, file: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.place = place
        self.offset = offset
        self.file = file

    def __str__(self) -> str:
        where = self.place + (f"+{self.offset:#x}" if self.offset is not None else "")
        return ": ".join(part for part in (self.file, where, self.message) if part)


class FormatError(SframegenError):
    """Bad input: a file that cannot be read, or is of the wrong kind."""


class VerificationError(SframegenError):
    """The new file differs from the plan, a fault of sframegen; the old one is still there."""


@contextmanager
def naming(file: str) -> Iterator[None]:
    """An error of the block names the file, if it names none."""
    try:
        yield
    except SframegenError as error:
        error.file = error.file or file
        raise
