"""Columns that grow. Those of one `Room` are in memory up to a budget; beyond it they are in files without names."""

from __future__ import annotations

import os
import tempfile
from array import array
from contextlib import suppress
from mmap import MADV_DONTFORK, MADV_DONTNEED, MAP_ANONYMOUS, MAP_PRIVATE, MAP_SHARED, PAGESIZE, mmap
from typing import TYPE_CHECKING

from sframegen.program.own_memory import bytes_of_files, trim_heap

if TYPE_CHECKING:
    from collections.abc import Iterator

BUDGET = 32 << 20  # bytes in memory
PART = 1 << 17  # numbers in each column of a part
MOST_OF_FILES = 64 << 20  # bytes of mapped files in memory, in addition to those that stay
SMALL = 1 << 16  # bytes: a column that is not larger stays in memory
FOLDERS = ("/var/tmp", "/tmp")  # noqa: S108 - the first on a disk, where /tmp may be memory; the files have no names


def folder_for_files() -> str:
    """Return where the files without names are: in a minimal root, some of these folders are missing."""
    folders = (*filter(None, [os.environ.get("TMPDIR")]), *FOLDERS)
    return next((folder for folder in folders if os.access(folder, os.W_OK | os.X_OK)), folders[0])


class Growing:
    """A column of numbers: `view` covers all of it, and is replaced by `Room.grow`."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.itemsize = array(code).itemsize
        self.file = -1
        self.map = mmap(-1, PAGESIZE, MAP_PRIVATE | MAP_ANONYMOUS)
        self.map.madvise(MADV_DONTFORK)  # a forked process would keep what changes here, and needs none of it
        self.view = self._view()

    def __len__(self) -> int:
        return len(self.view)

    def _view(self) -> memoryview:
        view: memoryview = memoryview(self.map).cast(self.code)  # type: ignore[call-overload]  # an integer's
        return view

    def resize(self, size: int) -> None:
        """Change the size to a number of bytes. Raises OSError, MemoryError."""
        self.view.release()
        try:
            if self.file >= 0:
                os.posix_fallocate(self.file, 0, size)  # a full disk is an error here, and not a signal later
            self.map.resize(size)
        finally:
            self.view = self._view()

    def move(self, folder: str) -> None:
        """Move the column from memory into a file. Raises OSError."""
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, len(self.map))
            new = mmap(file.fileno(), len(self.map), MAP_SHARED)
            new.madvise(MADV_DONTFORK)
            new[:] = self.map[:]
            self.close()
            self.map, self.file = new, os.dup(file.fileno())
        self.view = self._view()

    def rest(self) -> None:
        """Release the memory of a column in a file; needed parts are read from the file again."""
        if self.file >= 0:
            self.map.madvise(MADV_DONTNEED)

    def close(self) -> None:
        with suppress(BufferError):  # where a part of it is held elsewhere, it goes with that
            self.view.release()
            self.map.close()
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


class Room:
    """Makes columns, and lets them grow. `budget`: bytes of all that are in memory."""

    def __init__(self, budget: int = BUDGET, folder: str | None = None) -> None:
        self.budget = budget
        self.folder = folder or folder_for_files()
        self.in_file = False
        self._staying = 0
        self._columns: list[Growing] = []

    def column(self, code: str) -> Growing:
        self._columns.append(Growing(code))
        return self._columns[-1]

    def grow(self, column: Growing, count: int) -> None:
        """Grow a column to at least `count` numbers; new ones are 0. No view of it may be held. Raises OSError, MemoryError."""
        size = max(count * column.itemsize, len(column.map) + len(column.map) // 2)
        size = -(-size // PAGESIZE) * PAGESIZE
        if not self.in_file and self.bytes + size - len(column.map) > self.budget:
            self.in_file = True
        if self.in_file and column.file < 0 and size > SMALL:
            column.move(self.folder)
        column.resize(size)

    def drop(self, column: Growing) -> None:
        """Free a column's memory, as soon as nothing holds a part of it."""
        self._columns.remove(column)
        column.close()

    @property
    def bytes(self) -> int:
        """Return the size of all columns, in memory and in files."""
        return sum(len(column.map) for column in self._columns)

    def parts(self, count: int, first: int = 0, *, last_first: bool = False) -> Iterator[range]:
        """Yield the numbers from `first` to `count` in ranges; call `leave_files` after each."""
        starts = range(first, count, PART)
        for start in reversed(starts) if last_first else starts:
            yield range(start, min(start + PART, count))
            self.leave_files()

    def leave_files(self) -> None:
        """Release file memory if columns are in files and use much of it. Pages that others map, such as libraries, stay."""
        if not self.in_file:
            return
        size = bytes_of_files()
        self._staying = min(self._staying, size)
        if size > self._staying + MOST_OF_FILES:
            self.rest()
            self._staying = bytes_of_files()

    def rest(self) -> None:
        """Release the memory of columns in files, and free memory of the heap."""
        for column in self._columns:
            column.rest()
        trim_heap()

    def close(self) -> None:
        while self._columns:
            self._columns.pop().close()
