"""Set operations on ranges of addresses or file offsets, and look-up of the range that holds a place."""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter

from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import TypeAlias

Range: TypeAlias = "tuple[int, int]"  # [start, end)

MAX_NAMES = 8  # names of one joined extent; more ranges than that only overlap in damaged files
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


R = TypeVar("R", "tuple[int, int]", "tuple[int, int, int]", Extent)  # begins with start and end


def align_up(value: int, align: int) -> int:
    return (value + align - 1) & -align


def size_of(ranges: Iterable[Range]) -> int:
    """Return the total size of the ranges."""
    return sum(end - start for start, end in ranges)


def disjoint(ranges: Iterable[Range]) -> list[Range]:
    """Return the union as ascending ranges; ranges that overlap or touch become one."""
    found: list[Range] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def join(extents: Iterable[Extent]) -> list[Extent]:
    """Return ascending disjoint extents; extents that overlap become one, but not those that only touch."""
    joined: list[Extent] = []
    for start, end, names, align in sorted(extents):
        if joined and start < joined[-1].end:
            last = joined[-1]
            more = tuple(name for name in names if name not in last.names) if len(last.names) < MAX_NAMES else ()
            joined[-1] = Extent(last.start, max(last.end, end), last.names + more, max(last.align, align))
        else:
            joined.append(Extent(start, end, names, align))
    return joined


# All functions below take lists of ascending, disjoint ranges.


def holder(ranges: Sequence[R], place: int) -> int | None:
    """Return the number of the range that holds a place; None if none does."""
    number = bisect_right(ranges, place, key=START) - 1
    return number if number >= 0 and place < ranges[number][1] else None


def count_in(ranges: Sequence[R], places: Iterable[int]) -> int:
    """Return how many of the places some range holds."""
    return sum(holder(ranges, place) is not None for place in places)


def is_within(one: Range, ranges: Sequence[Range]) -> bool:
    """Return True if one of the ranges contains all of `one`."""
    number = holder(ranges, one[0])
    return number is not None and one[1] <= ranges[number][1]


def overlapping(ranges: Sequence[R], start: int, end: int) -> list[R]:
    """Return the ranges that share a byte with [start, end)."""
    last = bisect_right(ranges, end - 1, key=START)
    first = last
    while first and ranges[first - 1][1] > start:
        first -= 1
    return list(ranges[first:last]) if start < end else []


def gaps(ranges: Sequence[R], start: int, end: int) -> list[Range]:
    """Return the parts of [start, end) that no range covers."""
    found: list[Range] = []
    for item in overlapping(ranges, start, end):
        if start < item[0]:
            found.append((start, item[0]))
        start = item[1]
    return [*found, (start, end)] if start < end else found


def remaining(ranges: Iterable[Range], taken: Sequence[Range]) -> Iterator[tuple[int, int, int]]:
    """Yield (range number, start, end) for each part of the ranges that `taken` does not cover."""
    place = 0
    for number, (start, end) in enumerate(ranges):
        here = start
        while here < end:
            while place < len(taken) and taken[place][1] <= here:
                place += 1
            low, high = taken[place] if place < len(taken) else (end, end)
            if here < low:
                yield number, here, min(low, end)
            here = max(here, high)


def without(ranges: Iterable[Range], taken: Sequence[Range]) -> list[Range]:
    """Return the parts of the ranges that `taken` does not cover."""
    return [(start, end) for _, start, end in remaining(ranges, taken)]
