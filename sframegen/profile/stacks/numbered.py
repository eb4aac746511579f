"""Pairs of numbers -> their numbers in the order of first use: frames, nodes and rows of a tree of calls. Compiled."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from sframegen.profile.stacks.growing import Room

COMPILED: bool = cython.compiled
FILLED = 1 << 19  # pairs, after which their memory is released if they are in a file
EMPTY64, EMPTY32 = memoryview(array("Q")), memoryview(array("I"))


class Numbered:
    """Pairs by number: columns `first` and `second` hold `count` pairs, numbered from 0 on."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.columns = room.column("Q"), room.column("I"), room.column("I")
        self.count = 0
        self.factor = 0x9E3779B97F4A7C15
        self.mask = 0xFFFFFFFFFFFFFFFF
        self.slots = len(self.columns[2])  # of the index: a power of two
        self.look()

    def of(self, first: cython.ulonglong, second: cython.ulonglong) -> cython.Py_ssize_t:
        """Return the number of a pair, which is added if it is new. Raises OSError, MemoryError if there is no room for it."""
        slot: cython.Py_ssize_t = self.slot(first, second)
        number: cython.Py_ssize_t = self.index[slot]
        if number:
            return number - 1
        if self.count >= self.capacity:
            self.reserve(self.count + 1)
            slot = self.slot(first, second)
        number = self.count
        self.first[number] = first
        self.second[number] = second
        self.count = number + 1
        self.index[slot] = number + 1
        return number

    def append(self, first: cython.ulonglong, second: cython.ulonglong) -> cython.Py_ssize_t:
        """Add a new pair without an index entry, and return its number: it can be neither found nor cleared."""
        number: cython.Py_ssize_t = self.count
        if number >= len(self.first) or number >= len(self.second):
            self.lengthen(number + 1)
        self.first[number] = first
        self.second[number] = second
        self.count = number + 1
        return number

    def find(self, first: cython.ulonglong, second: cython.ulonglong) -> cython.Py_ssize_t:
        """Return the number of a pair; -1 if it has none."""
        number: cython.Py_ssize_t = self.index[self.slot(first, second)]
        return number - 1

    def slot(self, first: cython.ulonglong, second: cython.ulonglong) -> cython.Py_ssize_t:
        """Return the index slot that has the number of a pair, or the free slot for it."""
        last: cython.ulonglong = len(self.index) - 1
        place: cython.ulonglong = self.first_slot(first, second)
        number: cython.Py_ssize_t = self.index[place]
        while number and (self.first[number - 1] != first or self.second[number - 1] != second):
            place = (place + 1) & last
            number = self.index[place]
        return place

    def first_slot(self, first: cython.ulonglong, second: cython.ulonglong) -> cython.Py_ssize_t:
        """Return the first index slot to look at for a pair: its hash."""
        mixed: cython.ulonglong = ((first ^ (second << 32)) * self.factor) & self.mask
        return (mixed ^ (mixed >> 29)) & (len(self.index) - 1)

    def reserve(self, count: int) -> None:
        """Make room for that many pairs, and for them in the index."""
        index = self.columns[2]
        slots = self.slots
        while count > 2 * slots // 3:
            slots *= 2
        self.lengthen(count)
        self.leave()
        try:
            if slots > len(index):
                self.room.grow(index, slots)
        finally:
            self.look()
        if slots > self.slots:
            self.slots = slots
            self.look()
            self.fill()

    def lengthen(self, count: int) -> None:
        """Make room for that many pairs, but not in the index."""
        self.leave()
        try:
            for column in self.columns[:2]:
                if count > len(column):
                    self.room.grow(column, count)
        finally:
            self.look()

    def leave(self) -> None:
        """Release the views of all columns, so that columns can grow."""
        self.first, self.second, self.index = EMPTY64, EMPTY32, EMPTY32

    def look(self) -> None:
        """Take views of all columns as they are now."""
        first, second, index = self.columns
        self.first, self.second, self.index = first.view, second.view, index.view[: self.slots]
        self.capacity = min(len(first), len(second), 2 * self.slots // 3)

    def fill(self) -> None:
        """Fill the index from the pairs. All of the index is in memory, but only a part of the pairs at a time."""
        place: cython.Py_ssize_t
        for place in range(len(self.index)):
            self.index[place] = 0
        part: cython.Py_ssize_t = FILLED
        last: cython.Py_ssize_t = len(self.index) - 1
        number: cython.Py_ssize_t
        for number in range(self.count):
            if number % part == 0:
                for column in self.columns[:2]:
                    column.rest()
            place = self.first_slot(self.first[number], self.second[number])
            while self.index[place]:  # it is another pair's, since each pair is there once
                place = (place + 1) & last
            self.index[place] = number + 1

    def close(self) -> None:
        """Free the memory of all columns."""
        self.leave()
        for column in self.columns:
            self.room.drop(column)

    def clear(self) -> None:
        """Drop the pairs: takes as long as adding them, however large the index is."""
        number: cython.Py_ssize_t = self.count
        while number:  # the last one first, so that the index still leads to the others
            number -= 1
            self.index[self.slot(self.first[number], self.second[number])] = 0
        self.count = 0
