"""Numbers distinct pairs of integers in the order of first use: the frames, nodes and rows of a call tree. Compiled.

The pairs are two growing columns, `first` and `second`. A third column is a hash table with linear probing, which finds a pair's
number. While a column grows, nobody may have a view of it, so that the views are dropped before and taken again afterwards.
"""

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
PAIRS_AT_ONCE = 1 << 19  # pairs that `rebuild_index` reads before it releases their memory, if they are in files
EMPTY64, EMPTY32 = memoryview(array("Q")), memoryview(array("I"))


class Numbered:
    """`count` pairs, numbered from 0: pair N is (first[N], second[N]).

    `index` is a hash table of pair numbers plus 1, where 0 marks a free slot; `slots` is the part of its column in use.
    """

    def __init__(self, room: Room) -> None:
        self.room = room
        self.columns = room.new_column("Q"), room.new_column("I"), room.new_column("I")
        self.count = 0
        self.factor = 0x9E3779B97F4A7C15  # of the hash: 2**64 divided by the golden ratio, to spread similar numbers
        self.mask = 0xFFFFFFFFFFFFFFFF
        self.slots = len(self.columns[2])  # of the index: a power of two
        self.take_views()

    def number_of(self, first: cython.ulonglong, second: cython.ulonglong) -> cython.Py_ssize_t:
        """Return the number of a pair, adding it if it is new. Raises OSError, MemoryError if there is no room for it."""
        slot: cython.Py_ssize_t = self.find_slot(first, second)
        number: cython.Py_ssize_t = self.index[slot]
        if number:
            return number - 1
        if self.count >= self.capacity:
            self.reserve(self.count + 1)
            slot = self.find_slot(first, second)
        number = self.count
        self.first[number] = first
        self.second[number] = second
        self.count = number + 1
        self.index[slot] = number + 1
        return number

    def append(self, first: cython.ulonglong, second: cython.ulonglong) -> cython.Py_ssize_t:
        """Add a new pair without an index entry, and return its number. `number_of` and `clear` do not find it."""
        number: cython.Py_ssize_t = self.count
        if number >= len(self.first) or number >= len(self.second):
            self.lengthen(number + 1)
        self.first[number] = first
        self.second[number] = second
        self.count = number + 1
        return number

    def find(self, first: cython.ulonglong, second: cython.ulonglong) -> cython.Py_ssize_t:
        """Return the number of a pair; -1 if it was not added."""
        number: cython.Py_ssize_t = self.index[self.find_slot(first, second)]
        return number - 1

    def find_slot(self, first: cython.ulonglong, second: cython.ulonglong) -> cython.Py_ssize_t:
        """Return the index slot that contains the number of a pair, or the free slot where it belongs."""
        last: cython.ulonglong = len(self.index) - 1
        slot: cython.ulonglong = self.first_slot(first, second)
        number: cython.Py_ssize_t = self.index[slot]
        while number and (self.first[number - 1] != first or self.second[number - 1] != second):
            slot = (slot + 1) & last
            number = self.index[slot]
        return slot

    def first_slot(self, first: cython.ulonglong, second: cython.ulonglong) -> cython.Py_ssize_t:
        """Return the index slot at which the search for a pair begins, which is the pair's hash."""
        mixed: cython.ulonglong = ((first ^ (second << 32)) * self.factor) & self.mask
        return (mixed ^ (mixed >> 29)) & (len(self.index) - 1)

    def reserve(self, count: int) -> None:
        """Make room for that many pairs, and for their index entries, which take at most two thirds of the slots."""
        index = self.columns[2]
        slots = self.slots
        while count > 2 * slots // 3:
            slots *= 2
        self.lengthen(count)
        self.drop_views()
        try:
            if slots > len(index):
                self.room.grow(index, slots)
        finally:
            self.take_views()
        if slots > self.slots:
            self.slots = slots
            self.take_views()
            self.rebuild_index()

    def lengthen(self, count: int) -> None:
        """Make room for that many pairs, without index entries."""
        self.drop_views()
        try:
            for column in self.columns[:2]:
                if count > len(column):
                    self.room.grow(column, count)
        finally:
            self.take_views()

    def drop_views(self) -> None:
        """Release the views of all columns, so that columns can grow."""
        self.first, self.second, self.index = EMPTY64, EMPTY32, EMPTY32

    def take_views(self) -> None:
        first, second, index = self.columns
        self.first, self.second, self.index = first.view, second.view, index.view[: self.slots]
        self.capacity = min(len(first), len(second), 2 * self.slots // 3)

    def rebuild_index(self) -> None:
        """Rebuild the index from the pairs, with only a part of the pairs in memory at a time."""
        slot: cython.Py_ssize_t
        for slot in range(len(self.index)):
            self.index[slot] = 0
        interval: cython.Py_ssize_t = PAIRS_AT_ONCE
        last: cython.Py_ssize_t = len(self.index) - 1
        number: cython.Py_ssize_t
        for number in range(self.count):
            if number % interval == 0:
                for column in self.columns[:2]:
                    column.release_pages()
            slot = self.first_slot(self.first[number], self.second[number])
            while self.index[slot]:  # the slot is another pair's, because each pair occurs only once
                slot = (slot + 1) & last
            self.index[slot] = number + 1

    def close(self) -> None:
        self.drop_views()
        for column in self.columns:
            self.room.drop(column)

    def clear(self) -> None:
        """Drop the pairs. The time depends on their number and not on the size of the index."""
        number: cython.Py_ssize_t = self.count
        while number:  # the last pair first, because the search for a pair may pass the slots of earlier ones
            number -= 1
            self.index[self.find_slot(self.first[number], self.second[number])] = 0
        self.count = 0
