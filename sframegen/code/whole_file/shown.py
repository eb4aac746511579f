"""The results of all functions of a file, as loops read them. Compiled.

A function is a number here: its place in the columns. Results that others took the place of are there, too, but not live.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if not cython.compiled:
    from bisect import bisect_left, bisect_right
if TYPE_CHECKING:
    from collections.abc import Collection

    from sframegen.base.columns import Bytes, Column
    from sframegen.code.function.findings import FindingColumns

COMPILED: bool = cython.compiled


class Evidence:
    """The columns. `live`: 1 for each function that counts; `entries`: where functions are known to begin.

    `proving`: other functions trust only what their own code or an entry shows to be functions. lessons.pxd has the types.
    """

    def __init__(self, columns: FindingColumns, live: Bytes, entries: set[int], proving: bool) -> None:
        self.live = live
        self.entries = entries
        self.proving = proving
        self.count = len(live)
        self.marks = columns.marks
        self.at_calls = columns.at_calls
        self.end_piece = columns.end_piece
        self.piece_start = columns.piece_start
        self.piece_end = columns.piece_end
        self.end_entry = columns.end_entry
        self.entry = columns.entry
        self.end_row = columns.end_row
        self.row_start = columns.row_start
        self.row_word = columns.row_word
        self.end_exit = columns.end_exit
        self.exit_source = columns.exit_source
        self.exit_target = columns.exit_target
        self.exit_as_entered = columns.exit_as_entered
        self.end_call = columns.end_call
        self.callee = columns.callee
        self.call_kind = columns.call_kind
        self.end_taken = columns.end_taken
        self.taken = columns.taken
        self.end_table = columns.end_table
        self.table = columns.table

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
        """True if what it shows of other functions is trusted."""
        if not self.proving or (self.marks[number] & 80) == 16:  # CONTRADICTS, SHOWS_ITSELF
            return 1
        return not self.marks[number] & 64 and self.is_entered(number)

    def keeps_exits(self, number: cython.Py_ssize_t) -> cython.int:
        """True if each way out of it to other code has the frame of an entry."""
        place: cython.Py_ssize_t
        for place in range(self.end_exit[number], self.end_exit[number + 1]):
            if not self.exit_as_entered[place]:
                return 0
        return 1

    def goes_on_after(self, number: cython.Py_ssize_t, callees: Collection[int]) -> cython.int:
        """True if its code goes on after calls of these."""
        place: cython.Py_ssize_t
        for place in range(self.end_call[number], self.end_call[number + 1]):
            if self.call_kind[place] & 5 == 1 and self.callee[place] in callees:  # GOES_ON, BY_NAME
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

    def taken_by(self, number: cython.Py_ssize_t) -> list[int]:
        """Addresses of code that it puts into registers."""
        return [self.taken[place] for place in range(self.end_taken[number], self.end_taken[number + 1])]

    def callees_of(self, number: cython.Py_ssize_t) -> list[int]:
        """Addresses that it calls."""
        return [
            self.callee[place]
            for place in range(self.end_call[number], self.end_call[number + 1])
            if not self.call_kind[place] & 4  # BY_NAME
        ]


class Places:
    """Ranges of code, ascending, without overlaps."""

    def __init__(self, starts: Column, ends: Column) -> None:
        self.starts = starts
        self.ends = ends

    def number(self, address: cython.ulonglong) -> cython.Py_ssize_t:
        """The number of the range that holds an address; -1 if none does."""
        after: cython.Py_ssize_t = bisect_right(self.starts, address, 0, len(self.starts))
        return after - 1 if after and address < self.ends[after - 1] else -1

    def begins(self, address: cython.ulonglong) -> cython.int:
        """True if a range begins there."""
        number: cython.Py_ssize_t = self.number(address)
        return number >= 0 and self.starts[number] == address
