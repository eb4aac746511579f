"""Columns of numbers that grow. All columns of a `Room` share a budget of memory; beyond it they move into unnamed files.

A column in a file is mapped, so that it is used like one in memory. Its pages can be released; they are read again when needed.
"""

from __future__ import annotations

import os
import tempfile
from array import array
from contextlib import suppress
from mmap import MADV_DONTFORK, MADV_DONTNEED, MAP_ANONYMOUS, MAP_PRIVATE, MAP_SHARED, PAGESIZE, mmap
from typing import TYPE_CHECKING

from sframegen.program.own_memory import resident_file_bytes, trim_heap

if TYPE_CHECKING:
    from collections.abc import Iterator

BUDGET = 32 << 20  # bytes in memory
PART_SIZE = 1 << 17  # numbers of a column that are processed between two checks of memory
MAX_FILE_MEMORY = 64 << 20  # bytes of file pages in memory, in addition to those that cannot be released
SMALL_COLUMN = 1 << 16  # bytes up to which a column stays in memory
TEMPORARY_FOLDERS = ("/var/tmp", "/tmp")  # noqa: S108 - the first is on disk, while /tmp may be memory; the files have no names


def find_temporary_folder() -> str:
    """Return the folder for unnamed files. Some candidates may be missing, as in a minimal container."""
    folders = (*filter(None, [os.environ.get("TMPDIR")]), *TEMPORARY_FOLDERS)
    return next((folder for folder in folders if os.access(folder, os.W_OK | os.X_OK)), folders[0])


class GrowingColumn:
    """A column of numbers of the type `typecode` (as in array). `view` covers all of it, and is replaced when the column grows."""

    def __init__(self, typecode: str) -> None:
        self.typecode = typecode
        self.itemsize = array(typecode).itemsize
        self.file = -1
        self.map = mmap(-1, PAGESIZE, MAP_PRIVATE | MAP_ANONYMOUS)
        self.map.madvise(MADV_DONTFORK)  # otherwise a forked process, which does not need it, would keep copies of changed pages
        self.view = self._view()

    def __len__(self) -> int:
        return len(self.view)

    def _view(self) -> memoryview:
        view: memoryview = memoryview(self.map).cast(self.typecode)  # type: ignore[call-overload]  # an integer's
        return view

    def resize(self, size: int) -> None:
        """Change the size, in bytes. Raises OSError, MemoryError."""
        self.view.release()
        try:
            if self.file >= 0:
                os.posix_fallocate(self.file, 0, size)  # so that a full disk is an error here, and not a SIGBUS later
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

    def release_pages(self) -> None:
        """Release the memory of a column in a file; pages are read from the file again when needed."""
        if self.file >= 0:
            self.map.madvise(MADV_DONTNEED)

    def close(self) -> None:
        with suppress(BufferError):  # somebody still has a view, and the memory is freed together with it
            self.view.release()
            self.map.close()
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


class Room:
    """Makes columns that share a budget: the bytes that may be in memory before growing columns move into files in `folder`."""

    def __init__(self, budget: int = BUDGET, folder: str | None = None) -> None:
        self.budget = budget
        self.folder = folder or find_temporary_folder()
        self.in_file = False  # the budget is used up
        self._resident_before = 0  # bytes of file pages that stayed in memory after the last release
        self._columns: list[GrowingColumn] = []

    def new_column(self, typecode: str) -> GrowingColumn:
        self._columns.append(GrowingColumn(typecode))
        return self._columns[-1]

    def grow(self, column: GrowingColumn, count: int) -> None:
        """Grow a column to at least `count` numbers, with zeros. Nobody may have a view of it. Raises OSError, MemoryError."""
        least = max(count * column.itemsize, len(column.map) + len(column.map) // 2)
        size = -(-least // PAGESIZE) * PAGESIZE
        if not self.in_file and self.bytes + size - len(column.map) > self.budget:
            self.in_file = True
        if self.in_file and column.file < 0 and size > SMALL_COLUMN:
            column.move(self.folder)
        column.resize(size)

    def drop(self, column: GrowingColumn) -> None:
        """Free a column's memory, as soon as nobody has a view of it."""
        self._columns.remove(column)
        column.close()

    @property
    def bytes(self) -> int:
        """Return the size of all columns, in memory and in files."""
        return sum(len(column.map) for column in self._columns)

    def parts(self, count: int, first: int = 0, *, last_first: bool = False) -> Iterator[range]:
        """Yield the numbers from `first` to `count` in ranges, so that file memory can be limited after each of them."""
        starts = range(first, count, PART_SIZE)
        for start in reversed(starts) if last_first else starts:
            yield range(start, min(start + PART_SIZE, count))
            self.limit_file_memory()

    def limit_file_memory(self) -> None:
        """Release the pages of columns in files if file pages take much memory. Pages that others map, such as libraries, stay."""
        if not self.in_file:
            return
        size = resident_file_bytes()
        self._resident_before = min(self._resident_before, size)
        if size > self._resident_before + MAX_FILE_MEMORY:
            self.release_pages()
            self._resident_before = resident_file_bytes()

    def release_pages(self) -> None:
        """Release the memory of columns in files, and free memory of the heap."""
        for column in self._columns:
            column.release_pages()
        trim_heap()

    def close(self) -> None:
        while self._columns:
            self._columns.pop().close()
