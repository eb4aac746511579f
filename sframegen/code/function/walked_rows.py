"""What a walk has found, by columns: rows as they are kept, and the states at calls and returns. Compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from cfi import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from cfi.columns import Bytes, Column

COMPILED: bool = cython.compiled


@cython.locals(
    flows="const unsigned char[::1]",
    at="const unsigned int[::1]",
    effects="const unsigned int[::1]",
    row_start="const unsigned long long[::1]",
    row_end="const unsigned long long[::1]",
    row_state="const unsigned int[::1]",
)
def states_at_flows(
    flows: Bytes, at: Column, effects: Column, row_start: Column, row_end: Column, row_state: Column
) -> tuple[list[tuple[int, int]], set[int]]:
    """Return (state, effects) of each return in a row, and the states of the rows that hold calls. Points and rows ascend."""
    returns: list[tuple[int, int]] = []
    calls: set[int] = set()
    point: cython.Py_ssize_t
    after: cython.Py_ssize_t = 0  # the rows that begin at the point or before
    rows: cython.Py_ssize_t = len(row_start)
    place: cython.ulonglong
    for point in range(len(flows)):
        if flows[point] & 7 != 4 and flows[point] & 7 != 5:  # CALL, RETURN
            continue
        place = at[point]
        while after < rows and row_start[after] <= place:
            after += 1
        if after == 0 or row_end[after - 1] <= place:
            continue
        if flows[point] & 7 == 4:  # CALL
            calls.add(row_state[after - 1])
        else:
            returns.append((row_state[after - 1], effects[point]))
    return returns, calls


@cython.locals(
    marks="const unsigned char[::1]",
    starts="const unsigned long long[::1]",
    bases="const unsigned int[::1]",
    row_start="unsigned long long[::1]",
    row_end="unsigned long long[::1]",
)
def to_addresses(marks: Bytes, starts: Column, bases: Column, row_start: Column, row_end: Column) -> None:
    """Rows' places, ascending, become addresses. Padding between two rows that nothing reaches belongs to the first."""
    row: cython.Py_ssize_t
    piece: cython.Py_ssize_t = 0
    other: cython.Py_ssize_t
    place: cython.ulonglong
    end: cython.ulonglong
    following: cython.ulonglong
    for row in range(len(row_start)):
        while bases[piece + 1] <= row_start[row]:
            piece += 1
        end = row_end[row]
        if row + 1 < len(row_start):
            following = row_start[row + 1]
            other = piece
            while bases[other + 1] <= following:
                other += 1
            if end < following and starts[other] - starts[piece] == bases[other] - bases[piece]:
                place = end
                while place < following and marks[place] != 1:
                    place += 1
                if place == following:
                    end = following
        row_start[row] = row_start[row] - bases[piece] + starts[piece]
        row_end[row] = end - bases[piece] + starts[piece]


@cython.locals(
    row_start="const unsigned long long[::1]", row_end="const unsigned long long[::1]", row_state="const unsigned int[::1]"
)
def packed(row_start: Column, row_end: Column, row_state: Column, base: cython.ulonglong) -> tuple[list[int], list[int]]:
    """Return start and end of each row, from `base`, and the place of its state among the states, which come second."""
    rows: list[int] = []
    numbers: dict[int, int] = {}
    row: cython.Py_ssize_t
    for row in range(len(row_start)):
        rows.append(row_start[row] - base)
        rows.append(row_end[row] - base)
        rows.append(numbers.setdefault(row_state[row], len(numbers)))
    return rows, list(numbers)
