"""Joins the ranges of code that belong to one function, with a union-find structure. Compiled.

Each set of joined ranges is a tree: `parent` leads from a range to its root, which stands for the function.
"""

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
    from sframegen.code.whole_file.evidence import Evidence
    from sframegen.elf.columns import Spans
    from sframegen.elf.ranges import Range

    # The ranges of a function, ascending, and the addresses where it is called.
    StaleFunction = tuple[tuple[Range, ...], tuple[int, ...]]


class FunctionRanges:
    """The ranges of each function. Two belong to one function if one jumps into the other where no function begins.

    A range's number is its index in `ranges`; ranges.number(address) is -1 outside of them.
    """

    def __init__(self, ranges: Spans) -> None:
        self.ranges = ranges
        self.parent = array("Q", range(len(ranges.start)))
        self.members: dict[int, list[int]] = {}  # root -> the other ranges of its set; most ranges are alone
        self.entries: Column = array("Q")  # ascending

    def find_root(self, number: cython.Py_ssize_t) -> cython.Py_ssize_t:
        while self.parent[number] != number:
            self.parent[number] = self.parent[self.parent[number]]  # shortens the path for later searches
            number = self.parent[number]
        return number

    def join_addresses(self, one: cython.ulonglong, other: cython.ulonglong) -> cython.int:
        """Join the ranges that contain two addresses, if both are in a range."""
        first: cython.Py_ssize_t = self.ranges.number(one)
        second: cython.Py_ssize_t = self.ranges.number(other)
        if first >= 0 and second >= 0:
            self.parent[self.find_root(second)] = self.find_root(first)
        return 0

    @cython.locals(number="Py_ssize_t", index="Py_ssize_t")
    def join(self, evidence: Evidence, continues: Callable[[int, int], bool] | None) -> None:
        """Join the ranges that jumps connect, and those that were joined before. `continues`: see file_context.py."""
        for number in range(evidence.count):
            if evidence.live[number]:
                for index in range(evidence.end_piece[number] + 1, evidence.end_piece[number + 1]):
                    self.join_addresses(evidence.start(number), evidence.piece_start[index])
        for number in range(evidence.count):
            if (
                not evidence.live[number]
                or not evidence.is_credible(number)
                or (evidence.proving and not evidence.has_known_entry(number))
            ):
                continue
            for index in range(evidence.end_exit[number], evidence.end_exit[number + 1]):
                if evidence.exit_target[index] in evidence.entries:
                    continue
                if continues is None or continues(evidence.exit_source[index], evidence.exit_target[index]):
                    self.join_addresses(evidence.exit_source[index], evidence.exit_target[index])
        for number in range(len(self.parent)):
            if self.parent[number] != number:
                self.members.setdefault(self.find_root(number), []).append(number)

    def ranges_of(self, number: cython.Py_ssize_t) -> list[int]:
        """Return the numbers of all ranges that were joined with a root, ascending."""
        return sorted([number, *self.members[number]]) if number in self.members else [number]

    def pieces_of_unit(self, unit: Sequence[int]) -> list[Range]:
        return [(self.ranges.start[number], self.ranges.end[number]) for number in unit]

    @cython.locals(number="Py_ssize_t", root="Py_ssize_t")
    def find_changed(self, evidence: Evidence) -> list[int]:
        """Return the functions whose ranges are no longer exactly those of one function."""
        found: list[int] = []
        for number in range(evidence.count):
            if evidence.live[number]:
                root = self.find_root(self.ranges.number(evidence.start(number)))
                if evidence.pieces_of(number) != self.pieces_of_unit(self.ranges_of(root)):
                    found.append(number)
        return found

    @cython.locals(number="Py_ssize_t", function="Py_ssize_t")
    def find_stale(self, evidence: Evidence, functions: dict[int, int], never_returning: set[int]) -> list[StaleFunction]:
        """Return ranges and entries of the functions to analyse again because of what is known now. `functions`: by start."""
        found: list[StaleFunction] = []
        self.entries = array("Q", sorted(evidence.entries))
        for number in range(len(self.parent)):
            if self.parent[number] == number:
                unit = self.ranges_of(number)
                pieces = self.pieces_of_unit(unit)
                entries = self.entries_in(unit) or ([pieces[0][0]] if evidence.proving else [])
                function = functions.get(pieces[0][0], -1)
                if (
                    function < 0
                    or evidence.entries_of(function) != entries
                    or evidence.continues_after_calls(function, never_returning)
                ):
                    found.append((tuple(pieces), tuple(entries)))
        return found

    def entries_in(self, unit: Sequence[int]) -> list[int]:
        """Return those of `entries` that are in the ranges with these numbers, ascending."""
        number: cython.Py_ssize_t
        index: cython.Py_ssize_t
        found: list[int] = []
        for number in unit:
            index = bisect_left(self.entries, self.ranges.start[number], 0, len(self.entries))
            while index < len(self.entries) and self.entries[index] < self.ranges.end[number]:
                found.append(self.entries[index])
                index += 1
        return found
