"""Splits the bytes of a ring buffer into records with their times. Compiled, because thousands come in a second."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from sframegen.base.errors import FormatError
from sframegen.profile.events.event_records import LOST, SAMPLE

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from sframegen.base.columns import Column

COMPILED: bool = cython.compiled
# (time, number, kind, misc, bytes without the header). The numbers keep records of equal times in their order.
TimedRecord: TypeAlias = tuple[int, int, int, int, bytes]
TIME_IN_SAMPLE = 2  # position in units of 8 bytes: after the header, pid and tid
TIME_FROM_END = 2  # position in all other records, counted from their end


@cython.locals(words="const unsigned int[::1]", halves="const unsigned short[::1]", longs="const unsigned long long[::1]")
def split_records(data: bytes, number: cython.longlong, records: list[TimedRecord]) -> int:
    """Append the records, numbered from `number` on; return how many the kernel could not write. Raises FormatError."""
    usable_size: cython.Py_ssize_t = len(data) // 8 * 8
    view = memoryview(data)[:usable_size]
    words: Column = view.cast("I")
    halves: Column = view.cast("H")
    longs: Column = view.cast("Q")
    at: cython.Py_ssize_t = 0  # position of the next record, in units of 8 bytes
    end: cython.Py_ssize_t = usable_size // 8
    lost: cython.ulonglong = 0
    sample_kind: cython.uint = SAMPLE
    lost_kind: cython.uint = LOST
    while at < end:
        kind: cython.uint = words[2 * at]
        size: cython.Py_ssize_t = halves[4 * at + 3]
        length: cython.Py_ssize_t = size // 8
        if not length or size % 8 or at + length > end:
            raise FormatError(f"a record of {size} bytes, {8 * (end - at)} are left", "ring buffer", 8 * at)
        time_at: cython.Py_ssize_t = TIME_IN_SAMPLE if kind == sample_kind else length - TIME_FROM_END
        if time_at < 1 or time_at >= length:
            raise FormatError(f"{size - 8} bytes are too few", f"record of kind {kind}")
        if kind == lost_kind:
            lost += longs[at + 2]  # after the header and an id: the number of lost records
        records.append((longs[at + time_at], number, kind, halves[4 * at + 2], data[8 * at + 8 : 8 * (at + length)]))
        number += 1
        at += length
    return lost
