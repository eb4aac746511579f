"""Columns that cannot grow, side by side in memory."""

from __future__ import annotations

from array import array

import pytest

from cfi.columns import LARGE_PAGE, room


@pytest.mark.parametrize("count", [0, 1, 3, LARGE_PAGE // 8 + 1])
def test_columns_are_zeros_of_their_own_that_do_not_overlap(count: int) -> None:
    columns = room("BQHI", count)
    assert [column.format for column in columns] == ["B", "Q", "H", "I"]
    assert [len(column) for column in columns] == [count] * 4
    for number, column in enumerate(columns):
        assert set(bytes(column[:100]) + bytes(column[-100:])) <= {0}
        column[:] = memoryview(bytes([number + 1]) * column.nbytes).cast(column.format)  # type: ignore[call-overload]
    assert [set(bytes(column[:100]) + bytes(column[-100:])) for column in columns] == [
        {n} if count else set() for n in (1, 2, 3, 4)
    ]


def test_a_slice_is_the_column() -> None:
    [column] = room("I", 4)
    column[1:][0] = 7
    assert list(column) == [0, 7, 0, 0]


def test_columns_of_several_rooms_do_not_overlap() -> None:
    columns = [room("H", count)[0] for count in (LARGE_PAGE // 3, 20_000, LARGE_PAGE // 4, 20_001, 3, LARGE_PAGE, 50_000)]
    for number, column in enumerate(columns):
        assert not any(column)
        column[:] = memoryview(array("H", [number + 1]) * len(column))
    assert [set(column) for column in columns] == [{number + 1} for number in range(len(columns))]
