"""Copies a large file in a thread, while what changes in the copy is worked out."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING, Self

from cfi.errors import FormatError
from linker.files.copying import check_unchanged, copy_file
from linker.files.rename_into_place import nameless_file, opened

if TYPE_CHECKING:
    from typing import BinaryIO

    from linker.files.location import Location
    from sframegen.elf.file import ElfFile

LARGE = 16 << 20  # bytes: smaller files are copied in a few milliseconds


class CopyAhead:
    """A copy of a file, without a name until `write_atomically` gives it one.

    `file`: None if the target's file system has no files without names. What fails is raised where the copy is needed.
    """

    def __init__(self, elf: ElfFile, target: Location) -> None:
        """Raises OSError if the target's directory cannot be read."""
        self._elf = elf
        self._failure: OSError | FormatError | None = None
        self._thread = Thread(target=self._copy)
        with opened(target) as directory:
            self.file = nameless_file(directory)

    def __enter__(self) -> Self:
        if self.file is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.file is not None:
            self._thread.join()
            self.file.close()

    def _copy(self) -> None:
        assert self.file is not None
        try:
            copy_file(self._elf, self.file)
        except (OSError, FormatError) as error:
            self._failure = error

    def copy(self, elf: ElfFile, out: BinaryIO) -> None:
        """Make `out` a copy, as `copy_file` does; if it is the one that was begun, wait until it is whole."""
        if out is not self.file:
            copy_file(elf, out)
            return
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        check_unchanged(elf)
