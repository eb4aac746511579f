"""Set operations on ranges of addresses or file offsets, and look-ups of the range that contains a value."""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter

from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import TypeAlias

Range: TypeAlias = "tuple[int, int]"  # [start, end)

MAX_NAMES = 8  # names kept for one joined extent; only in damaged files do more extents overlap
START = itemgetter(0)


class Extent(NamedTuple):
    """A file range [start, end), the names of its contents, and their alignment in bytes."""

    start: int
    end: int
    names: tuple[str, ...] = ()
    align: int = 1

    @property
    def size(self) -> int:
        return self.end - self.start


R = TypeVar("R", bound="tuple[int, int, *tuple[object, ...]]")  # begins with start and end


def align_up(value: int, align: int) -> int:
    return (value + align - 1) & -align


def sum_sizes(ranges: Iterable[Range]) -> int:
    return sum(end - start for start, end in ranges)


def merge_ranges(ranges: Iterable[Range]) -> list[Range]:
    """Return the union of the ranges in ascending order; ranges that overlap or touch become one."""
    merged: list[Range] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def join_extents(extents: Iterable[Extent]) -> list[Extent]:
    """Return the extents in ascending order; extents that overlap become one, those that only touch stay separate."""
    joined: list[Extent] = []
    for start, end, names, align in sorted(extents):
        if joined and start < joined[-1].end:
            last = joined[-1]
            new_names = tuple(name for name in names if name not in last.names) if len(last.names) < MAX_NAMES else ()
            joined[-1] = Extent(last.start, max(last.end, end), last.names + new_names, max(last.align, align))
        else:
            joined.append(Extent(start, end, names, align))
    return joined


# All functions below require that `ranges` and `taken` (ranges, too) are ascending and disjoint.


def index_of_containing_range(ranges: Sequence[R], value: int) -> int | None:
    """Return the index of the range that contains `value`; None if none does."""
    index = bisect_right(ranges, value, key=START) - 1
    return index if index >= 0 and value < ranges[index][1] else None


def count_contained(ranges: Sequence[R], values: Iterable[int]) -> int:
    """Return how many of the values lie in any of the ranges."""
    return sum(index_of_containing_range(ranges, value) is not None for value in values)


def is_within(inner: Range, ranges: Sequence[Range]) -> bool:
    """Return True if one of the ranges contains all of `inner`."""
    index = index_of_containing_range(ranges, inner[0])
    return index is not None and inner[1] <= ranges[index][1]


def find_overlapping(ranges: Sequence[R], start: int, end: int) -> list[R]:
    """Return the ranges that share a byte with [start, end)."""
    last = bisect_right(ranges, end - 1, key=START)
    first = last
    while first and ranges[first - 1][1] > start:
        first -= 1
    return list(ranges[first:last]) if start < end else []


def find_gaps(ranges: Sequence[R], start: int, end: int) -> list[Range]:
    """Return the parts of [start, end) that no range covers."""
    gaps: list[Range] = []
    position = start
    for covered in find_overlapping(ranges, start, end):
        if position < covered[0]:
            gaps.append((position, covered[0]))
        position = covered[1]
    return [*gaps, (position, end)] if position < end else gaps


def find_uncovered_ranges(ranges: Iterable[Range], taken: Sequence[Range]) -> Iterator[tuple[int, int, int]]:
    """Yield (index of the range, start, end) for each part of the ranges that `taken` does not cover."""
    next_taken = 0
    for index, (start, end) in enumerate(ranges):
        position = start
        while position < end:
            while next_taken < len(taken) and taken[next_taken][1] <= position:
                next_taken += 1
            low, high = taken[next_taken] if next_taken < len(taken) else (end, end)
            if position < low:
                yield index, position, min(low, end)
            position = max(position, high)


def subtract_ranges(ranges: Iterable[Range], taken: Sequence[Range]) -> list[Range]:
    """Return the parts of the ranges that `taken` does not cover."""
    return [(start, end) for _, start, end in find_uncovered_ranges(ranges, taken)]
