"""Ranges of code, put together to functions. Compiled."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if not cython.compiled:
    from bisect import bisect_left
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sframegen.base.columns import Column
    from sframegen.code.whole_file.shown import Evidence, Places
    from sframegen.elf.ranges import Range

    Work = tuple[
        tuple[Range, ...], tuple[int, ...]
    ]  # the ranges of a function, ascending, and where it is entered as functions are

COMPILED: bool = cython.compiled


class Joined:
    """Ranges of code that belong to one function, because one jumps into another where no function begins."""

    def __init__(self, ranges: Places) -> None:
        self.ranges = ranges
        self.parent = array("Q", range(len(ranges.starts)))
        self.members: dict[int, list[int]] = {}  # most ranges are functions by themselves
        self.entries: Column = array("Q")  # ascending

    def root(self, number: cython.Py_ssize_t) -> cython.Py_ssize_t:
        while self.parent[number] != number:
            self.parent[number] = self.parent[self.parent[number]]
            number = self.parent[number]
        return number

    def together(self, one: cython.ulonglong, other: cython.ulonglong) -> cython.int:
        """The ranges that hold these addresses belong together."""
        first: cython.Py_ssize_t = self.ranges.number(one)
        second: cython.Py_ssize_t = self.ranges.number(other)
        if first >= 0 and second >= 0:
            self.parent[self.root(second)] = self.root(first)
        return 0

    def join(self, shown: Evidence, continues: Callable[[int, int], bool] | None) -> None:
        """Join what jumps show, and what was together before."""
        number: cython.Py_ssize_t
        place: cython.Py_ssize_t
        for number in range(shown.count):
            if shown.live[number]:
                for place in range(shown.end_piece[number] + 1, shown.end_piece[number + 1]):
                    self.together(shown.start(number), shown.piece_start[place])
        for number in range(shown.count):
            if not shown.live[number] or not shown.is_credible(number) or (shown.proving and not shown.is_entered(number)):
                continue
            for place in range(shown.end_exit[number], shown.end_exit[number + 1]):
                if shown.exit_target[place] in shown.entries:
                    continue
                if continues is None or continues(shown.exit_source[place], shown.exit_target[place]):
                    self.together(shown.exit_source[place], shown.exit_target[place])
        for number in range(len(self.parent)):
            if self.parent[number] != number:
                self.members.setdefault(self.root(number), []).append(number)

    def unit(self, number: cython.Py_ssize_t) -> list[int]:
        """The numbers of all ranges of the function whose root that is."""
        return sorted([number, *self.members[number]]) if number in self.members else [number]

    def dissolved(self, shown: Evidence) -> list[int]:
        """Return the functions whose ranges are not those of one function any more."""
        number: cython.Py_ssize_t
        root: cython.Py_ssize_t
        place: cython.Py_ssize_t
        found: list[int] = []
        for number in range(shown.count):
            if shown.live[number]:
                place = shown.end_piece[number]
                root = self.root(self.ranges.number(shown.piece_start[place]))
                unit = self.unit(root) if root in self.members else None
                if unit is None:
                    is_same = shown.end_piece[number + 1] == place + 1 and self.is_range(shown, place, root)
                else:
                    is_same = shown.end_piece[number + 1] == place + len(unit)
                    for one in unit if is_same else ():
                        is_same = is_same and self.is_range(shown, place, one)
                        place += 1
                if not is_same:
                    found.append(number)
        return found

    def is_range(self, shown: Evidence, piece: cython.Py_ssize_t, number: cython.Py_ssize_t) -> cython.bint:
        return self.ranges.starts[number] == shown.piece_start[piece] and self.ranges.ends[number] == shown.piece_end[piece]

    def stale(self, shown: Evidence, functions: dict[int, int], never_return: set[int]) -> list[Work]:
        """Return ranges and entries of the functions that were not analysed with what is known now. `functions`: by starts."""
        number: cython.Py_ssize_t
        function: cython.Py_ssize_t
        found: list[Work] = []
        self.entries = array("Q", sorted(shown.entries))
        for number in range(len(self.parent)):
            if self.parent[number] != number:
                continue
            unit = self.unit(number) if number in self.members else None
            function = functions.get(self.ranges.starts[number if unit is None else unit[0]], -1)
            if function < 0 or not self.has_entries(shown, function, number, unit) or shown.goes_on_after(function, never_return):
                found.append(self.work(unit or [number], shown.proving))
        return found

    def has_entries(
        self, shown: Evidence, function: cython.Py_ssize_t, number: cython.Py_ssize_t, unit: Sequence[int] | None
    ) -> cython.bint:
        """True if the function was entered where it is now: the unit, or else the one range with the number."""
        place: cython.Py_ssize_t = shown.end_entry[function]
        end: cython.Py_ssize_t = shown.end_entry[function + 1]
        first: cython.Py_ssize_t = place
        one: cython.Py_ssize_t
        if unit is None:
            place = self.entries_match(shown, place, end, number)
        else:
            for one in unit:
                if place >= 0:
                    place = self.entries_match(shown, place, end, one)
        if place == first and shown.proving:  # none is known
            return end == first + 1 and shown.entry[first] == shown.start(function)
        return place == end

    def entries_match(
        self, shown: Evidence, place: cython.Py_ssize_t, end: cython.Py_ssize_t, number: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """The place after the entries that are those of a range; -1 if they are not."""
        at: cython.Py_ssize_t = self.first_entry(self.ranges.starts[number])
        while at < len(self.entries) and self.entries[at] < self.ranges.ends[number]:
            if place == end or shown.entry[place] != self.entries[at]:
                return -1
            place += 1
            at += 1
        return place

    def first_entry(self, address: cython.ulonglong) -> cython.Py_ssize_t:
        """The place of the first entry at or after an address."""
        return bisect_left(self.entries, address, 0, len(self.entries))

    def work(self, unit: list[int], proving: bool) -> Work:
        """Ranges and entries of a unit."""
        number: cython.Py_ssize_t
        low: cython.Py_ssize_t
        high: cython.Py_ssize_t
        pieces: list[Range] = []
        entries: list[int] = []
        for number in unit:
            pieces.append((self.ranges.starts[number], self.ranges.ends[number]))
            low = self.first_entry(self.ranges.starts[number])
            high = self.first_entry(self.ranges.ends[number])
            entries.extend([self.entries[at] for at in range(low, high)])
        return tuple(pieces), tuple(entries or ([pieces[0][0]] if proving else []))
