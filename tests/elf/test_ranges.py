from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sframegen.elf.ranges import (
    Extent,
    Range,
    find_gaps,
    find_overlapping,
    find_uncovered_ranges,
    index_of_containing_range,
    join_extents,
    merge_ranges,
    subtract_ranges,
    sum_sizes,
)

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)).map(lambda one: (one[0], one[0] + one[1])), max_size=8)


def apart(ranges: list[Range]) -> list[Range]:
    """Some of them: ascending and disjoint; they may touch."""
    found: list[Range] = []
    for start, end in sorted(ranges):
        if not found or start >= found[-1][1]:
            found.append((start, end))
    return found


def places(ranges: list[Range]) -> list[int]:
    return [at for start, end in ranges for at in range(start, end)]


@given(RANGES)
def test_disjoint_holds_the_same_places_in_as_few_ranges_as_can_be(ranges: list[Range]) -> None:
    found = merge_ranges(ranges)
    assert places(found) == sorted(set(places(ranges)))
    assert all(one[1] < other[0] for one, other in pairwise(found))
    assert sum_sizes(found) == len(places(found))


@given(RANGES, RANGES)
def test_what_remains_is_what_is_not_taken(one: list[Range], other: list[Range]) -> None:
    ranges, taken = apart(one), apart(other)
    gone = set(places(taken))
    left = [(number, at) for number, start, end in find_uncovered_ranges(ranges, taken) for at in range(start, end)]
    assert left == [(number, at) for number, (start, end) in enumerate(ranges) for at in range(start, end) if at not in gone]
    assert subtract_ranges(ranges, taken) == [gap for start, end in ranges for gap in find_gaps(taken, start, end)]


@given(RANGES, st.integers(0, 80))
def test_the_holder_is_the_range_with_the_place(ranges: list[Range], place: int) -> None:
    ascending = apart(ranges)
    assert index_of_containing_range(ascending, place) == next(
        (number for number, (low, high) in enumerate(ascending) if low <= place < high), None
    )


def test_extents_that_overlap_become_one_with_all_names() -> None:
    a, b, c = Extent(0, 4, ("a",)), Extent(2, 6, ("b",), 8), Extent(6, 9, ("c",))
    assert join_extents([c, b, a]) == [Extent(0, 6, ("a", "b"), 8), c]
    assert [item.names for item in find_overlapping([a, c], 3, 7)] == [("a",), ("c",)]
    assert find_overlapping([a, c], 4, 6) == []
    assert find_overlapping([a, c], 5, 5) == []
    assert find_gaps([a, c], 2, 12) == [(4, 6), (9, 12)]
    assert find_gaps([], 2, 4) == [(2, 4)]
