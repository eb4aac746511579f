"""Address tables for the compiled modules: ranges, and executable areas with their bytes (docs/architecture.md). Compiled."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if not cython.compiled:
    from bisect import bisect_right

    from sframegen.base.cython_shadow import prefetch
    from sframegen.elf.code_bytes.padding import padding_size
if TYPE_CHECKING:
    from collections.abc import Sequence

    from sframegen.base.columns import Bytes, Column
    from sframegen.elf.ranges import Range

COMPILED: bool = cython.compiled


class Spans:
    """Address ranges in columns, ascending and disjoint."""

    def __init__(self, start: Column, end: Column) -> None:
        self.start = start
        self.end = end

    def number(self, address: cython.ulonglong) -> cython.Py_ssize_t:
        """Return the index of the range that contains an address; -1 if none does."""
        after: cython.Py_ssize_t = bisect_right(self.start, address, 0, len(self.start))
        return after - 1 if after and address < self.end[after - 1] else -1

    def begins(self, address: cython.ulonglong) -> cython.int:
        """Return True if a range begins at the address."""
        number: cython.Py_ssize_t = self.number(address)
        return number >= 0 and self.start[number] == address


def build_spans(ranges: Sequence[Range]) -> Spans:
    return Spans(array("Q", [start for start, _ in ranges]), array("Q", [end for _, end in ranges]))


class Areas:
    """The executable areas of a file, ascending and disjoint, with access to their bytes.

    Compiled code translates addresses to file offsets only here, because an address has an offset only within its area.

    `segment`: the start address of each area's segment, which is contiguous in the file. `offset`: the file offset of each area.
    `category`: how bytes without CFI are counted (docs/coverage.md). `padding`: the state table that padding_states returns.
    """

    def __init__(
        self, data: Bytes, padding: Column, start: Column, end: Column, segment: Column, offset: Column, category: Bytes
    ) -> None:
        self.data = data
        self.padding = padding
        self.start = start
        self.end = end
        self.segment = segment
        self.offset = offset
        self.category = category

    def prefetch_byte(self, area: cython.Py_ssize_t, address: cython.ulonglong) -> cython.Py_ssize_t:
        """Prefetch the byte at an address into the CPU's cache; do nothing if the address is not in the area."""
        pos: cython.Py_ssize_t
        if cython.compiled and area < len(self.end) and self.start[area] <= address < self.end[area]:
            pos = self.file_offset(area, address)
            prefetch(cython.address(self.data[pos]))  # type: ignore[attr-defined]
        return 0

    def file_offset(self, area: cython.Py_ssize_t, address: cython.ulonglong) -> cython.Py_ssize_t:
        """Return the file offset of an address in the area, or of the area's end; -1 for other addresses."""
        if address < self.start[area] or address > self.end[area]:
            return -1
        return self.offset[area] + (address - self.start[area])

    def bytes_before(self, area: cython.Py_ssize_t, address: cython.ulonglong, count: cython.ulonglong) -> cython.ulonglong:
        """Return the `count` (at most 8) bytes before an address as a big-endian number.

        There are fewer at the segment's beginning. The number is 0 if the address neither lies in the area nor is its end.
        """
        value: cython.ulonglong = 0
        pos: cython.Py_ssize_t
        stop: cython.Py_ssize_t = self.file_offset(area, address)
        if stop < 0:
            return 0
        if count > address - self.segment[area]:
            count = address - self.segment[area]
        for pos in range(stop - count, stop):
            value = (value << 8) | self.data[pos]
        return value

    def next_area(self, area: cython.Py_ssize_t, address: cython.ulonglong) -> cython.Py_ssize_t:
        """Return the next area if it begins at `address`, where this area ends, in the same segment; otherwise this area."""
        if address != self.end[area] or area + 1 == len(self.start) or self.start[area + 1] != address:
            return area
        return area + 1 if self.segment[area + 1] == self.segment[area] else area

    def padding_end(
        self, area: cython.Py_ssize_t, low: cython.ulonglong, high: cython.ulonglong, whole: cython.bint
    ) -> cython.ulonglong:
        """Return the end of the padding that begins at `low`, at most `high`; `low` if [low, high) is not all in the area.

        `whole`: if True, the last no-op has to end by `high`; otherwise it may extend beyond.
        """
        pos: cython.Py_ssize_t = self.file_offset(area, low)
        if pos < 0 or high > self.end[area] or high <= low:
            return low
        return low + padding_size(self.padding, self.data, pos, high - low, whole)
