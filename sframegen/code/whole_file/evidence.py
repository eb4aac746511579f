"""Merges the results about all functions of a file from those of each process, and answers questions about them. Compiled.

A function is a number here, its index in the columns (FindingColumns): function n has the elements end_x[n] up to end_x[n + 1] of
a column x. If a function was analysed again, its old results stay, but are not live.
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
    from bisect import bisect_left

    from sframegen.code.function.marks import BY_NAME, CONTRADICTS, GOES_ON, SHOWS_ITSELF
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from sframegen.base.columns import Bytes, Column
    from sframegen.code.isa.effects import FrameState


class Evidence:
    """The columns of results. `live`: 1 for each function that counts; `entries`: where functions are known to begin.

    `proving`: the code has no CFI, and rules are to be proven. The results of a function about others are then trusted only if its
    own code or one of `entries` shows that it is a function. evidence.pxd has the types.
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

    def has_entry_in(self, number: cython.Py_ssize_t, addresses: Collection[int]) -> cython.int:
        """Returns True if one of the function's entries is among the addresses."""
        index: cython.Py_ssize_t
        for index in range(self.end_entry[number], self.end_entry[number + 1]):
            if self.entry[index] in addresses:
                return 1
        return 0

    def has_known_entry(self, number: cython.Py_ssize_t) -> cython.int:
        return self.has_entry_in(number, self.entries)

    def is_credible(self, number: cython.Py_ssize_t) -> cython.int:
        """Returns True if its results about other functions are trusted."""
        if not self.proving or self.marks[number] & (CONTRADICTS | SHOWS_ITSELF) == SHOWS_ITSELF:
            return 1
        return not self.marks[number] & CONTRADICTS and self.has_known_entry(number)

    def exits_as_entered(self, number: cython.Py_ssize_t) -> cython.int:
        """Returns True if it always leaves to other code with the frame that functions are entered with."""
        index: cython.Py_ssize_t
        for index in range(self.end_exit[number], self.end_exit[number + 1]):
            if not self.exit_as_entered[index]:
                return 0
        return 1

    def continues_after_calls(self, number: cython.Py_ssize_t, callees: Collection[int]) -> cython.int:
        """Returns True if its code continues after a call of one of these callees."""
        index: cython.Py_ssize_t
        for index in range(self.end_call[number], self.end_call[number + 1]):
            if self.call_kind[index] & (GOES_ON | BY_NAME) == GOES_ON and self.callee[index] in callees:
                return 1
        return 0

    def first_row_at(self, number: cython.Py_ssize_t, address: cython.ulonglong) -> cython.Py_ssize_t:
        """Returns the first of its rows that begins at or after an address."""
        return bisect_left(self.row_start, address, self.end_row[number], self.end_row[number + 1])

    def state_at(self, number: cython.Py_ssize_t, address: cython.ulonglong) -> cython.Py_ssize_t:
        """Returns the number of its state at an address; -1 if control is not known to reach that."""
        first: cython.Py_ssize_t = self.end_row[number]
        row: cython.Py_ssize_t = self.first_row_at(number, address + 1) - 1
        if row < first or address - self.row_start[row] >= self.row_word[row] >> 32:
            return -1
        return self.row_word[row] & 0x7FFFFFFF  # below the size, as FindingColumns has it

    def pieces_of(self, number: cython.Py_ssize_t) -> list[tuple[int, int]]:
        return [
            (self.piece_start[index], self.piece_end[index]) for index in range(self.end_piece[number], self.end_piece[number + 1])
        ]

    def entries_of(self, number: cython.Py_ssize_t) -> list[int]:
        return [self.entry[index] for index in range(self.end_entry[number], self.end_entry[number + 1])]

    def taken_by(self, number: cython.Py_ssize_t) -> list[int]:
        return [self.taken[index] for index in range(self.end_taken[number], self.end_taken[number + 1])]

    def callees_of(self, number: cython.Py_ssize_t) -> list[int]:
        return [
            self.callee[index]
            for index in range(self.end_call[number], self.end_call[number + 1])
            if not self.call_kind[index] & BY_NAME
        ]


class Results:
    """The results of all functions that were analysed. `live`: 1 for the latest result of each."""

    def __init__(self) -> None:
        self.columns = make_empty_findings()
        self.live = bytearray()
        self.functions: dict[int, int] = {}  # start -> number of each live function
        self._numbers: dict[FrameState, int] = {}

    def extend(self, found: FindingColumns) -> None:
        """Add results. They replace those of functions that begin at the same addresses."""
        first = len(self.live)
        new_numbers = array("Q", [self._numbers.setdefault(state, len(self._numbers)) for state in found.states])
        self.columns.states.extend(list(self._numbers)[len(self.columns.states) :])
        for name, column, added in zip(FindingColumns._fields[1:], self.columns[1:], found[1:], strict=True):
            if name.startswith(END_PREFIX):
                column.extend(_shift_ends(added, column[len(column) - 1]))  # compiled, no index may be negative
            else:
                column.extend(_renumber_states(added, new_numbers) if name == "row_word" else added)
        self.live += b"\1" * len(found.marks)
        for number in range(first, len(self.live)):
            start = self.columns.piece_start[self.columns.end_piece[number]]
            before = self.functions.get(start)
            if before is not None:
                self.live[before] = 0
            self.functions[start] = number

    def remove(self, functions: Iterable[int]) -> None:
        for number in functions:
            self.live[number] = 0
            del self.functions[self.columns.piece_start[self.columns.end_piece[number]]]

    def make_evidence(self, entries: set[int], *, proving: bool) -> Evidence:
        """Return a view of the columns for compiled loops. The columns must not grow while it is in use."""
        return Evidence(self.columns, self.live, entries, proving)


@cython.locals(into="unsigned long long[::1]")
def _shift_ends(column: Column, by: cython.ulonglong) -> array[int]:
    """Return the numbers of a column except the first, with `by` added to each."""
    index: cython.Py_ssize_t
    found = array("Q", column[1:])
    into = found
    for index in range(len(into)):
        into[index] += by
    return found


@cython.locals(into="unsigned long long[::1]", numbers="const unsigned long long[::1]")
def _renumber_states(words: Column, numbers: Column) -> array[int]:
    """Return the words of `row_word` with `numbers[n]` instead of each state number n."""
    index: cython.Py_ssize_t
    found = array("Q", words)
    into = found
    for index in range(len(into)):
        into[index] = (into[index] >> 32) << 32 | numbers[into[index] & 0x7FFFFFFF]
    return found
