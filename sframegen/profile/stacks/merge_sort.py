"""Numbers -> their order: stable, in the memory that the caller gives, so that there may be many millions. Compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from cfi import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from cfi.columns import Column

COMPILED: bool = cython.compiled


@cython.locals(keys="const unsigned long long[::1]", order="unsigned int[::1]", other="unsigned int[::1]")
def merge_sort(keys: Column, order: Column, other: Column) -> cython.int:
    """Fill one of two columns with the places of the keys, ascending; return which: 0 or 1. Fast where most are in order."""
    count: cython.Py_ssize_t = len(keys)
    place: cython.Py_ssize_t
    for place in range(count):
        order[place] = place
    turn: cython.int = 0
    runs: cython.Py_ssize_t = 2
    while runs > 1:
        runs = merge_runs(keys, other, order) if turn else merge_runs(keys, order, other)
        if runs > 1 or runs < 0:
            turn = 1 - turn
    return turn


@cython.locals(keys="const unsigned long long[::1]", order="const unsigned int[::1]", into="unsigned int[::1]")
def merge_runs(keys: Column, order: Column, into: Column) -> cython.Py_ssize_t:
    """Merge ascending runs of `order`, two and two, into the other column; return how many there were, 1 if all is in order."""
    count: cython.Py_ssize_t = len(keys)
    runs: cython.Py_ssize_t = 0
    first: cython.Py_ssize_t = 0
    to: cython.Py_ssize_t = 0
    left: cython.Py_ssize_t
    right: cython.Py_ssize_t
    middle: cython.Py_ssize_t
    end: cython.Py_ssize_t
    while first < count:
        middle = first + 1
        while middle < count and keys[order[middle - 1]] <= keys[order[middle]]:
            middle += 1
        runs += 1
        if first == 0 and middle == count:
            return 1
        end = middle
        if middle < count:
            runs += 1
            end += 1
            while end < count and keys[order[end - 1]] <= keys[order[end]]:
                end += 1
        left = first
        right = middle
        while left < middle or right < end:
            if right == end or (left < middle and keys[order[left]] <= keys[order[right]]):
                into[to] = order[left]
                left += 1
            else:
                into[to] = order[right]
                right += 1
            to += 1
        first = end
    return runs
