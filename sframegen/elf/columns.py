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
    """Ascending, disjoint address ranges."""

    def __init__(self, start: Column, end: Column) -> None:
        self.start = start
        self.end = end

    def number(self, address: cython.ulonglong) -> cython.Py_ssize_t:
        """Return the number of the range that holds an address; -1 if none does."""
        after: cython.Py_ssize_t = bisect_right(self.start, address, 0, len(self.start))
        return after - 1 if after and address < self.end[after - 1] else -1

    def begins(self, address: cython.ulonglong) -> cython.int:
        """Return True if a range begins at the address."""
        number: cython.Py_ssize_t = self.number(address)
        return number >= 0 and self.start[number] == address


def spans_of(ranges: Sequence[Range]) -> Spans:
    return Spans(array("Q", [start for start, _ in ranges]), array("Q", [end for _, end in ranges]))


class Areas:
    """A file's executable areas, ascending and disjoint, and their bytes.

    Only this class translates addresses to file offsets: an address has an offset only in the area that holds it.

    `segment`: the start address of each area's segment, which is contiguous in the file. `offset`: the file offset of each area.
    `fate`: how bytes without CFI are counted. `padding`: the state table of padding_states (padding.py).
    """

    def __init__(
        self, data: Bytes, padding: Column, start: Column, end: Column, segment: Column, offset: Column, fate: Bytes
    ) -> None:
        self.data = data
        self.padding = padding
        self.start = start
        self.end = end
        self.segment = segment
        self.offset = offset
        self.fate = fate

    def fetch(self, area: cython.Py_ssize_t, address: cython.ulonglong) -> cython.Py_ssize_t:
        """Prefetch the byte at an address; do nothing if the area does not hold it."""
        pos: cython.Py_ssize_t
        if cython.compiled and area < len(self.end) and self.start[area] <= address < self.end[area]:
            pos = self.place(area, address)
            prefetch(cython.address(self.data[pos]))  # type: ignore[attr-defined]
        return 0

    def place(self, area: cython.Py_ssize_t, address: cython.ulonglong) -> cython.Py_ssize_t:
        """Return the file offset of an address that lies in the area or is its end; -1 if it is neither."""
        if address < self.start[area] or address > self.end[area]:
            return -1
        return self.offset[area] + (address - self.start[area])

    def before(self, area: cython.Py_ssize_t, address: cython.ulonglong, count: cython.ulonglong) -> cython.ulonglong:
        """Return the `count` (at most 8) bytes before an address as a big-endian number; fewer at the segment's beginning.

        0 if the address neither lies in the area nor is its end.
        """
        value: cython.ulonglong = 0
        pos: cython.Py_ssize_t
        stop: cython.Py_ssize_t = self.place(area, address)
        if stop < 0:
            return 0
        if count > address - self.segment[area]:
            count = address - self.segment[area]
        for pos in range(stop - count, stop):
            value = (value << 8) | self.data[pos]
        return value

    def following(self, area: cython.Py_ssize_t, address: cython.ulonglong) -> cython.Py_ssize_t:
        """Return the next area if the address is this one's end and the next one's start, in the same segment; else this one."""
        if address != self.end[area] or area + 1 == len(self.start) or self.start[area + 1] != address:
            return area
        return area + 1 if self.segment[area + 1] == self.segment[area] else area

    def padding_end(
        self, area: cython.Py_ssize_t, low: cython.ulonglong, high: cython.ulonglong, whole: cython.bint
    ) -> cython.ulonglong:
        """Return the end of the padding that begins at `low`, at most `high`; `low` if the area does not hold all of that range.

        `whole`: the last no-op must end by `high`; otherwise it may extend beyond.
        """
        pos: cython.Py_ssize_t = self.place(area, low)
        if pos < 0 or high > self.end[area] or high <= low:
            return low
        return low + padding_size(self.padding, self.data, pos, high - low, whole)
