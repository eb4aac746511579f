"""Words in data that may be pointers. Compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from cfi import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from cfi.columns import Column

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
