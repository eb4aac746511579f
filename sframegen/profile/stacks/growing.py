"""Columns that grow. Those of one `Room` are in memory up to a budget; beyond it they are in files without names."""

from __future__ import annotations

import os
import tempfile
from array import array
from contextlib import suppress
from mmap import MADV_DONTFORK, MADV_DONTNEED, MAP_ANONYMOUS, MAP_PRIVATE, MAP_SHARED, PAGESIZE, mmap
from typing import TYPE_CHECKING

from sframegen.program.unused_memory import bytes_of_files, trim_heap

if TYPE_CHECKING:
    from collections.abc import Iterator

BUDGET = 32 << 20  # bytes in memory
PART = 1 << 17  # numbers in each column of a part
MOST_OF_FILES = 64 << 20  # bytes of files in memory, more than those that stay
SMALL = 1 << 16  # bytes: a column that is not larger stays in memory
FOLDERS = ("/var/tmp", "/tmp")  # noqa: S108 - the first on a disk, where /tmp may be memory; the files have no names


def folder_for_files() -> str:
    """Return where the files without names are: in a minimal root, some of these folders are missing."""
    folders = (*filter(None, [os.environ.get("TMPDIR")]), *FOLDERS)
    return next((folder for folder in folders if os.access(folder, os.W_OK | os.X_OK)), folders[0])


class Growing:
    """A column of numbers: `view` has room for all of it, and is another one after `Room.grow`."""

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
        """To a number of bytes. Raises OSError, MemoryError."""
        self.view.release()
        try:
            if self.file >= 0:
                os.posix_fallocate(self.file, 0, size)  # a full disk is an error here, and not a signal later
            self.map.resize(size)
        finally:
            self.view = self._view()

    def move(self, folder: str) -> None:
        """Into a file. Raises OSError."""
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, len(self.map))
            new = mmap(file.fileno(), len(self.map), MAP_SHARED)
            new.madvise(MADV_DONTFORK)
            new[:] = self.map[:]
            self.close()
            self.map, self.file = new, os.dup(file.fileno())
        self.view = self._view()

    def rest(self) -> None:
        """Let the memory go that a file has; what is needed again is read from there."""
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
        """To at least that many numbers; new ones are 0. No view of it may be held. Raises OSError, MemoryError."""
        size = max(count * column.itemsize, len(column.map) + len(column.map) // 2)
        size = -(-size // PAGESIZE) * PAGESIZE
        if not self.in_file and self.bytes + size - len(column.map) > self.budget:
            self.in_file = True
        if self.in_file and column.file < 0 and size > SMALL:
            column.move(self.folder)
        column.resize(size)

    def drop(self, column: Growing) -> None:
        """Give its memory back, as soon as nothing holds a part of it."""
        self._columns.remove(column)
        column.close()

    @property
    def bytes(self) -> int:
        """The size of all columns, wherever they are."""
        return sum(len(column.map) for column in self._columns)

    def parts(self, count: int, first: int = 0, *, last_first: bool = False) -> Iterator[range]:
        """Yield the numbers from `first` to `count` in parts, each followed by `leave_files`."""
        starts = range(first, count, PART)
        for start in reversed(starts) if last_first else starts:
            yield range(start, min(start + PART, count))
            self.leave_files()

    def leave_files(self) -> None:
        """If columns are in files, and much of files is in memory, let it go. What others have mapped stays, as libraries."""
        if not self.in_file:
            return
        size = bytes_of_files()
        self._staying = min(self._staying, size)
        if size > self._staying + MOST_OF_FILES:
            self.rest()
            self._staying = bytes_of_files()

    def rest(self) -> None:
        """Let the memory go that files have, and what is free in the heap."""
        for column in self._columns:
            column.rest()
        trim_heap()

    def close(self) -> None:
        while self._columns:
            self._columns.pop().close()
