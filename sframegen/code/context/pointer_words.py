"""Words in data that may be pointers, and numbers in code that may be distances. Compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from sframegen.base.columns import Column

COMPILED: bool = cython.compiled


@cython.locals(words="const unsigned long long[::1]")
def words_within(words: Column, low: cython.ulonglong, high: cython.ulonglong) -> list[int]:
    """Return the words in [low, high), in their order."""
    found: list[int] = []
    word: cython.ulonglong
    place: cython.Py_ssize_t
    if not cython.compiled:
        return [word for word in words if low <= word < high]
    for place in range(len(words)):
        word = words[place]
        if low <= word < high:
            found.append(word)
    return found


@cython.locals(code="const unsigned char[::1]", starts="const unsigned long long[::1]", ends="const unsigned long long[::1]")
def distances_into(code: bytes, address: cython.ulonglong, starts: Column, ends: Column, alignment: cython.ulonglong) -> list[int]:
    """Return the ends of 4 bytes of the code that are the distance from there to an aligned address in one of the ranges.

    `address`: of the code. The ranges ascend.
    """
    found: list[int] = []
    after: cython.Py_ssize_t
    low: cython.Py_ssize_t
    high: cython.Py_ssize_t
    middle: cython.Py_ssize_t
    number: cython.ulonglong
    target: cython.ulonglong
    first: cython.ulonglong = starts[0]
    last: cython.ulonglong = ends[len(ends) - 1]
    mask: cython.ulonglong = 0xFFFFFFFFFFFFFFFF
    for after in range(4, len(code) + 1):
        number = code[after - 1]
        number = number << 24 | code[after - 2] << 16 | code[after - 3] << 8 | code[after - 4]
        target = (address + after + number - ((number >> 31) << 32)) & mask
        if target % alignment or target < first or target >= last:
            continue
        low = 0
        high = len(starts)
        while low < high:
            middle = (low + high) >> 1
            if starts[middle] <= target:
                low = middle + 1
            else:
                high = middle
        if target < ends[low - 1]:
            found.append(after)
    return found
