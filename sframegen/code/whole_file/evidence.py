"""The results of all functions of a file, put together from those of each process, and as loops read them. Compiled.

A function is a number here: its place in the columns. Results that others took the place of are there, too, but not live.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from sframegen.code.function.findings import END_PREFIX, FindingColumns, make_empty_findings

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if not cython.compiled:
    from bisect import bisect_left, bisect_right

    from sframegen.code.function.marks import BY_NAME, CONTRADICTS, GOES_ON, SHOWS_ITSELF
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from sframegen.base.columns import Bytes, Column
    from sframegen.code.isa.effects import FrameState


class Evidence:
    """The columns. `live`: 1 for each function that counts; `entries`: where functions are known to begin.

    `proving`: other functions trust only what their own code or an entry shows to be functions. evidence.pxd has the types.
    """

    def __init__(self, columns: FindingColumns, live: Bytes, entries: set[int], proving: bool) -> None:
        self.live = live
        self.entries = entries
        self.proving = proving
        self.count = len(live)
        (
            self.marks, self.at_calls, self.overrun, self.end_piece, self.piece_start, self.piece_end, self.end_entry, self.entry,
            self.end_row, self.row_start, self.row_word, self.end_exit, self.exit_source, self.exit_target, self.exit_as_entered,
            self.end_call, self.callee, self.call_kind, self.end_taken, self.taken, self.end_table, self.table,
        ) = columns[1:]  # fmt: skip

    def start(self, number: cython.Py_ssize_t) -> cython.ulonglong:
        return self.piece_start[self.end_piece[number]]

    def is_one_of(self, number: cython.Py_ssize_t, addresses: Collection[int]) -> cython.int:
        """True if one of its entries is among the addresses."""
        place: cython.Py_ssize_t
        for place in range(self.end_entry[number], self.end_entry[number + 1]):
            if self.entry[place] in addresses:
                return 1
        return 0

    def is_entered(self, number: cython.Py_ssize_t) -> cython.int:
        """True if a function is known to begin at one of its entries."""
        return self.is_one_of(number, self.entries)

    def is_credible(self, number: cython.Py_ssize_t) -> cython.int:
        """True if its results about other functions are trusted."""
        if not self.proving or self.marks[number] & (CONTRADICTS | SHOWS_ITSELF) == SHOWS_ITSELF:
            return 1
        return not self.marks[number] & CONTRADICTS and self.is_entered(number)

    def keeps_exits(self, number: cython.Py_ssize_t) -> cython.int:
        """True if each way out of it to other code has the frame of an entry."""
        place: cython.Py_ssize_t
        for place in range(self.end_exit[number], self.end_exit[number + 1]):
            if not self.exit_as_entered[place]:
                return 0
        return 1

    def goes_on_after(self, number: cython.Py_ssize_t, callees: Collection[int]) -> cython.int:
        """True if its code goes on after calls of these callees."""
        place: cython.Py_ssize_t
        for place in range(self.end_call[number], self.end_call[number + 1]):
            if self.call_kind[place] & (GOES_ON | BY_NAME) == GOES_ON and self.callee[place] in callees:
                return 1
        return 0

    def row(self, number: cython.Py_ssize_t, address: cython.ulonglong, after: cython.bint) -> cython.Py_ssize_t:
        """The first of its rows that begins at an address or after it, or with `after` only after it."""
        low: cython.Py_ssize_t = self.end_row[number]
        high: cython.Py_ssize_t = self.end_row[number + 1]
        if after:
            return bisect_right(self.row_start, address, low, high)
        return bisect_left(self.row_start, address, low, high)

    def state_at(self, number: cython.Py_ssize_t, address: cython.ulonglong) -> cython.Py_ssize_t:
        """The number of its state at an address; -1 if it is not known to be reached."""
        first: cython.Py_ssize_t = self.end_row[number]
        row: cython.Py_ssize_t = self.row(number, address, True) - 1
        if row < first or address - self.row_start[row] >= self.row_word[row] >> 32:
            return -1
        return self.row_word[row] & 0x7FFFFFFF

    def pieces_of(self, number: cython.Py_ssize_t) -> list[tuple[int, int]]:
        return [
            (self.piece_start[place], self.piece_end[place]) for place in range(self.end_piece[number], self.end_piece[number + 1])
        ]

    def entries_of(self, number: cython.Py_ssize_t) -> list[int]:
        return [self.entry[place] for place in range(self.end_entry[number], self.end_entry[number + 1])]

    def taken_by(self, number: cython.Py_ssize_t) -> list[int]:
        """Return the addresses of code that it puts into registers."""
        return [self.taken[place] for place in range(self.end_taken[number], self.end_taken[number + 1])]

    def callees_of(self, number: cython.Py_ssize_t) -> list[int]:
        """Return the addresses that it calls."""
        return [
            self.callee[place]
            for place in range(self.end_call[number], self.end_call[number + 1])
            if not self.call_kind[place] & BY_NAME
        ]


class Results:
    """Columns of all functions that were analysed. `live`: 1 for each of which no other result took the place."""

    def __init__(self) -> None:
        self.columns = make_empty_findings()
        self.live = bytearray()
        self.functions: dict[int, int] = {}  # start -> number of each live function
        self._numbers: dict[FrameState, int] = {}

    def extend(self, found: FindingColumns) -> None:
        """Add results. They take the place of those that begin at the same addresses."""
        first = len(self.live)
        own = array("Q", [self._numbers.setdefault(state, len(self._numbers)) for state in found.states])
        self.columns.states.extend(list(self._numbers)[len(self.columns.states) :])
        for name, mine, theirs in zip(FindingColumns._fields[1:], self.columns[1:], found[1:], strict=True):
            if name.startswith(END_PREFIX):
                mine.extend(_shifted(theirs, mine[len(mine) - 1]))  # compiled, no index is negative
            else:
                mine.extend(_renumbered(theirs, own) if name == "row_word" else theirs)
        self.live += b"\1" * len(found.marks)
        for number in range(first, len(self.live)):
            start = self.columns.piece_start[self.columns.end_piece[number]]
            before = self.functions.get(start)
            if before is not None:
                self.live[before] = 0
            self.functions[start] = number

    def forget(self, functions: Iterable[int]) -> None:
        """Mark functions as not live."""
        for number in functions:
            self.live[number] = 0
            del self.functions[self.columns.piece_start[self.columns.end_piece[number]]]

    def evidence(self, entries: set[int], *, proving: bool) -> Evidence:
        """Return the columns for loops. They must not grow while it is in use."""
        return Evidence(self.columns, self.live, entries, proving)


@cython.locals(into="unsigned long long[::1]")
def _shifted(column: Column, by: cython.ulonglong) -> array[int]:
    """Return the numbers of a column except the first, with that added."""
    place: cython.Py_ssize_t
    found = array("Q", column[1:])
    into = found
    for place in range(len(into)):
        into[place] += by
    return found


@cython.locals(into="unsigned long long[::1]", numbers="const unsigned long long[::1]")
def _renumbered(words: Column, numbers: Column) -> array[int]:
    """Return `row_word` with other numbers of states."""
    place: cython.Py_ssize_t
    found = array("Q", words)
    into = found
    for place in range(len(into)):
        into[place] = (into[place] >> 32) << 32 | numbers[into[place] & 0x7FFFFFFF]
    return found
