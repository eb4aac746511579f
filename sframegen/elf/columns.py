"""Tables of addresses as the compiled modules take them (docs/compiled.md). Compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from cfi import cython_shadow as cython  # type: ignore[no-redef]

if not cython.compiled:
    from cfi.cython_shadow import prefetch
if TYPE_CHECKING:
    from cfi.columns import Bytes, Column

COMPILED: bool = cython.compiled


class Spans:
    """Ranges of addresses, ascending and without overlaps."""

    def __init__(self, start: Column, end: Column) -> None:
        self.start = start
        self.end = end


class Areas:
    """Executable ranges of a file, ascending and without overlaps, and their bytes. Only this class knows where these are.

    `segment`: the address where the segment of each begins; all of a segment is in one piece of the file, and `offset` is the place
    of the area in it. `fate`: what becomes of bytes that no CFI describes. `padding`: the states that padding leads through
    (padding.py).
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
        """Asks for the byte at an address, to have it when it is read; nothing if the area does not hold it."""
        pos: cython.Py_ssize_t
        if cython.compiled and area < len(self.end) and self.start[area] <= address < self.end[area]:
            pos = self.offset[area] + (address - self.start[area])
            prefetch(cython.address(self.data[pos]))  # type: ignore[attr-defined]
        return 0

    def before(self, area: cython.Py_ssize_t, address: cython.ulonglong, count: cython.ulonglong) -> cython.ulonglong:
        """The last `count` bytes before an address, at most 8, as a big-endian number; fewer where the area's segment begins.

        0 if the address neither lies in the area nor is its end.
        """
        value: cython.ulonglong = 0
        pos: cython.Py_ssize_t
        stop: cython.Py_ssize_t
        if address < self.start[area] or address > self.end[area]:
            return 0
        if count > address - self.segment[area]:
            count = address - self.segment[area]
        stop = self.offset[area] + (address - self.start[area])
        for pos in range(stop - count, stop):
            value = (value << 8) | self.data[pos]
        return value

    def continues(self, area: cython.Py_ssize_t) -> cython.bint:
        """True if an area begins where the one before it ends, in the same segment."""
        if area == 0 or area >= len(self.start):
            return False
        return self.start[area] == self.end[area - 1] and self.segment[area] == self.segment[area - 1]

    def padding_end(
        self, area: cython.Py_ssize_t, low: cython.ulonglong, high: cython.ulonglong, whole: cython.bint
    ) -> cython.ulonglong:
        """Where the padding ends that begins at `low`, at most `high`; `low` if the area does not hold all of that range.

        `whole`: all of the last no-op is before `high`; else it may go on after it.
        """
        end: cython.ulonglong = low
        state: cython.Py_ssize_t = 0
        pos: cython.Py_ssize_t
        if low < self.start[area] or high > self.end[area]:
            return low
        pos = self.offset[area] + (low - self.start[area])
        while low < high:
            state = self.padding[(state << 8) | self.data[pos]]
            if state == 0xFFFF:  # FAIL
                break
            pos += 1
            low += 1
            if state == 0 or (low == high and not whole):
                end = low
        return end
