"""The one root of all errors that bad input can cause."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class FormatError(ValueError):
    """Input that cannot be read. `str()` is one line: `app.so: .eh_frame+0x1a4: expected 4 bytes, have 2`.

    `place` names a section or table, `offset` is in bytes from its start, `file` is set by whoever knows the path.
    """

    def __init__(self, message: str, place: str = "", offset: int | None = None, file: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.place = place
        self.offset = offset
        self.file = file

    def __reduce__(self) -> tuple[type[FormatError], tuple[str, str, int | None, str]]:
        """For another process it is this class, whatever a derived one is made of."""
        return FormatError, (self.message, self.place, self.offset, self.file)

    def __str__(self) -> str:
        where = self.place + (f"+{self.offset:#x}" if self.offset is not None else "")
        return ": ".join(part for part in (self.file, where, self.message) if part)


@contextmanager
def naming(file: str) -> Iterator[None]:
    """A FormatError of the block names the file, if it names none."""
    try:
        yield
    except FormatError as error:
        error.file = error.file or file
        raise
