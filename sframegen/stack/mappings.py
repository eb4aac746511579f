"""The memory mappings of a process, as the rows of /proc/PID/maps list them, and searches in them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

DELETED = " (deleted)"  # follows the path of a file that was deleted
VDSO = "[vdso]"
MAX_VDSO = 1 << 20  # bytes of it that are read
MAX_NEAREST_ROWS = 4  # rows that `nearest_rows` returns on each side
MAX_FILE_ROWS = 16  # rows that `nearest_rows_of_file` returns on each side


class Mapping(NamedTuple):
    """A row of /proc/PID/maps: addresses [start, end). Without a file, `inode` is 0, and `path` may be `[vdso]` or similar."""

    start: int
    end: int
    readable: bool
    writable: bool
    executable: bool
    offset: int  # of the first byte in the file
    device: str
    inode: int
    path: str

    @property
    def file(self) -> tuple[str, int, str]:
        """Return a key that all mappings of a file share."""
        return self.device, self.inode, self.path


class Mappings:
    """All mappings of a process, ascending. If rows overlap, as in a recording, those after the first are dropped."""

    def __init__(self, rows: Iterable[Mapping] = ()) -> None:
        self.rows: list[Mapping] = []
        for row in sorted(rows):
            if row.start < row.end and (not self.rows or self.rows[-1].end <= row.start):
                self.rows.append(row)
        self._starts = [row.start for row in self.rows]
        self._by_file: dict[tuple[str, int, str], list[Mapping]] | None = None

    def __iter__(self) -> Iterator[Mapping]:
        return iter(self.rows)

    def find(self, address: int) -> Mapping | None:
        at = bisect_right(self._starts, address) - 1
        return self.rows[at] if at >= 0 and address < self.rows[at].end else None

    def nearest_rows_of_file(self, row: Mapping) -> list[Mapping]:
        """Return rows of the same file, the nearest first; at most MAX_FILE_ROWS on each side."""
        if self._by_file is None:
            self._by_file = {}
            for other in self.rows:
                self._by_file.setdefault(other.file, []).append(other)
        rows = self._by_file[row.file]
        at = bisect_left(rows, row)
        return sorted(rows[max(at - MAX_FILE_ROWS, 0) : at + MAX_FILE_ROWS], key=lambda other: abs(other.start - row.start))

    def nearest_rows(self, row: Mapping) -> list[Mapping]:
        """Return the rows around this one that map files, ascending; at most MAX_NEAREST_ROWS on each side."""
        at = bisect_left(self.rows, row)
        return [other for other in self.rows[max(at - MAX_NEAREST_ROWS, 0) : at + MAX_NEAREST_ROWS + 1] if other.inode]

    def covers(self, address: int, size: int) -> bool:
        """Return True if all `size` bytes at the address are mapped and readable."""
        end = address + size
        while address < end:
            row = self.find(address)
            if row is None or not row.readable:
                return False
            address = row.end
        return True

    def overlapping(self, start: int, end: int) -> Iterator[Mapping]:
        """Yield the rows that have addresses of [start, end)."""
        for number in range(max(bisect_right(self._starts, start) - 1, 0), len(self.rows)):
            row = self.rows[number]
            if row.start >= end:
                return
            if start < row.end:
                yield row

    def stack_at(self, address: int) -> tuple[int, int] | None:
        """Return (start, end) of the readable and writable memory around `address`, which adjacent mappings extend; else None."""
        number = bisect_right(self._starts, address) - 1
        if number < 0 or address >= self.rows[number].end or not _is_data(self.rows[number]):
            return None
        first = last = number
        while first and _is_data(self.rows[first - 1]) and self.rows[first - 1].end == self.rows[first].start:
            first -= 1
        while last + 1 < len(self.rows) and _is_data(self.rows[last + 1]) and self.rows[last].end == self.rows[last + 1].start:
            last += 1
        return self.rows[first].start, self.rows[last].end


def _is_data(row: Mapping) -> bool:
    return row.readable and row.writable
