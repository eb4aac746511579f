"""Unsigned numbers in bytes of either order. Compiled: all that reads bytes in a loop derives from this class."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from sframegen.base.columns import Bytes

COMPILED: bool = cython.compiled


class Numbers:
    """Bytes, and the unsigned numbers in them. numbers.pxd has the types."""

    def __init__(self, data: Bytes, big: bool) -> None:
        """`big`: the byte order."""
        self.data = data
        self.length = len(data)
        self.big = big

    @cython.boundscheck(False)
    def number(self, pos: cython.Py_ssize_t, width: cython.Py_ssize_t) -> cython.ulonglong:
        """The number of `width` bytes, at most 8, at `pos`. Raises IndexError where they are not in `data`."""
        value: cython.ulonglong = 0
        byte: cython.ulonglong
        shift: cython.int = 8 * (width - 1) if self.big else 0
        step: cython.int = -8 if self.big else 8
        i: cython.Py_ssize_t
        if pos < 0 or pos + width > self.length:  # checked once, not for each byte
            raise IndexError(pos)
        if width == 4 and not self.big:  # most numbers that are read: a single load
            value = self.data[pos + 3]
            return value << 24 | self.data[pos + 2] << 16 | self.data[pos + 1] << 8 | self.data[pos]
        for i in range(pos, pos + width):
            byte = self.data[i]
            value |= byte << shift
            shift += step
        return value
