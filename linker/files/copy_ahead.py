"""Copies the first part of a large file in a thread, while the changes to the copy are computed."""

from __future__ import annotations

from contextlib import suppress
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Self

from linker.files.copying import FilePart, check_unchanged, copy_file
from linker.files.rename_into_place import nameless_file, opened_directory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import BinaryIO

    from linker.files.location import Location
    from sframegen.elf.file import ElfFile

LARGE = 16 << 20  # bytes: smaller files are copied in a few milliseconds


class CopyAhead:
    """A copy of a file's first `size` bytes, without a name until `write_atomically` gives it one.

    `file`: None if there is no such copy, as where the target's file system has no files without names, or the system gives no
    thread. What fails in the thread is raised where the copy is needed.
    """

    def __init__(self, elf: ElfFile, target: Location, size: int) -> None:
        self.file: BinaryIO | None = None
        self._elf = elf
        self._size = size
        self._target = target
        self._failure: BaseException | None = MemoryError()  # until the copy is whole: a thread may end before it does anything
        self._unneeded = Event()
        self._writing = Lock()  # a thread that `join` waited for in vain may seem to have ended
        self._thread = Thread(target=self._copy)

    def __enter__(self) -> Self:
        return self

    def start(self) -> None:
        """To be called within the block, which ends the thread."""
        with suppress(OSError), opened_directory(self._target) as directory:
            self.file = nameless_file(directory)
        if self.file is None:
            return
        try:
            self._thread.start()
        except (RuntimeError, MemoryError):  # too many threads, or no room for another one's stack
            self.file.close()
            self.file = None

    def __exit__(self, *_: object) -> None:
        self._stop()
        if self.file is not None:
            with suppress(OSError):  # what is still buffered has no room, either
                self.file.close()
        if self._thread.is_alive():
            self._thread.join()

    def _stop(self) -> None:
        """Return when nothing more is written."""
        self._unneeded.set()
        with self._writing:
            pass

    def _copy(self) -> None:
        with self._writing:
            if self.file is None or self._unneeded.is_set():
                return
            try:
                copy_file(self._elf, self.file, [FilePart(0, 0, self._size)], self._unneeded.is_set)
                self._failure = None
            except BaseException as error:  # noqa: BLE001 - whatever it is, the copy is not whole
                self._failure = error

    def copy(self, elf: ElfFile, out: BinaryIO, parts: Sequence[FilePart] = ()) -> None:
        """Make `out` a copy, as `copy_file` does; if it is the one already in progress, wait for it and copy the rest."""
        parts = parts or [FilePart(0, 0, len(elf.data))]
        first, *rest = parts
        if out is not self.file:
            copy_file(elf, out, parts)
            return
        try:
            self._thread.join()
        except BaseException:  # a signal's; whoever made `out` closes it next
            self._stop()
            raise
        if self._failure is not None:
            raise self._failure
        check_unchanged(elf)
        if first.start == first.to == 0 and first.size >= self._size:
            rest = [FilePart(self._size, self._size, first.size - self._size), *rest]
        else:
            out.truncate(0)
            rest = list(parts)
        rest = [part for part in rest if part.size]
        if rest:
            copy_file(elf, out, rest)
