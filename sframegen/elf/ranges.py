"""Ranges of file offsets: joined, overlapping, and the gaps between them."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


MAX_NAMES = 8  # of what lies in one range; more than that overlap in damaged files only


class Range(NamedTuple):
    """File offsets [start, end), what is there, and the alignment that it needs."""

    start: int
    end: int
    names: tuple[str, ...]
    align: int = 1

    @property
    def size(self) -> int:
        return self.end - self.start


def align_up(value: int, align: int) -> int:
    return (value + align - 1) & -align


def join(ranges: Iterable[Range]) -> list[Range]:
    """Ascending disjoint ranges: those that overlap become one."""
    joined: list[Range] = []
    for start, end, names, align in sorted(ranges):
        if joined and start < joined[-1].end:
            last = joined[-1]
            more = tuple(name for name in names if name not in last.names) if len(last.names) < MAX_NAMES else ()
            joined[-1] = Range(last.start, max(last.end, end), last.names + more, max(last.align, align))
        else:
            joined.append(Range(start, end, names, align))
    return joined


def overlapping(ranges: list[Range], start: int, end: int) -> list[Range]:
    """Return those of ascending disjoint ranges that have a byte in [start, end)."""
    last = bisect_right(ranges, end - 1, key=lambda item: item.start)
    first = last
    while first and ranges[first - 1].end > start:
        first -= 1
    return ranges[first:last] if start < end else []


def gaps(ranges: list[Range], start: int, end: int) -> list[tuple[int, int]]:
    """Return the parts of [start, end) that none of ascending disjoint ranges covers."""
    found = []
    for item in overlapping(ranges, start, end):
        if start < item.start:
            found.append((start, item.start))
        start = item.end
    return [*found, (start, end)] if start < end else found
