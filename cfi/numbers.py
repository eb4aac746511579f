"""Unsigned numbers in bytes of either order. Compiled: all that reads bytes in a loop derives from this class."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from cfi import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from cfi.columns import Bytes

COMPILED: bool = cython.compiled


class Numbers:
    """Bytes, and the unsigned numbers in them. numbers.pxd has the types."""

    def __init__(self, data: Bytes, big: bool) -> None:
        """`big`: the byte order."""
        self.data = data
        self.big = big

    def number(self, pos: cython.Py_ssize_t, width: cython.Py_ssize_t) -> cython.ulonglong:
        """The number of `width` bytes, at most 8, at `pos`: the caller has checked that they are in `data`."""
        value: cython.ulonglong = 0
        i: cython.Py_ssize_t
        if self.big:
            for i in range(pos, pos + width):
                value = value * 256 + self.data[i]
        else:
            for i in range(width):
                value = value * 256 + self.data[pos + width - 1 - i]
        return value
