"""Turns the columns of a FunctionTable into the rows of a decoded table, and its index of pages (decoded_table.py). Compiled.

`measure` and `fill` visit the functions by ascending address: `measure` to find the sizes of the index and of the rows, `fill` to
write them. A function ends where the next one begins. Code between two functions gets a row with rule number 0, "no rule".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from sframegen.base.columns import Bytes, Column
    from sframegen.format.columns import Functions

COMPILED: bool = cython.compiled


class RuleNumbers:
    """The rule numbers that the new table has for the rules and kinds of functions.

    `of_rule`: rule r has the number of_rule[2 * r], and in signal frames of_rule[2 * r + 1]. By kind: `signal` (0 or 1), `period`
    (bytes after which the rows of PC type MASK repeat; 0: never), `without_rows` (the rule's number in functions without rows).
    """

    def __init__(self, of_rule: Column, signal: Bytes, period: Bytes, without_rows: Column) -> None:
        self.of_rule, self.signal, self.period, self.without_rows = of_rule, signal, period, without_rows


class Paginator:
    """Writes the rows of functions by ascending address, each cut where the next one begins. Call `measure`, then `fill`.

    `measure` sets `pages`, an upper limit of `rows`, and `left_out`: the number of functions that have too many repeated rows,
    or are too far from the first one. `fill` sets `rows` to their real number.
    """

    def __init__(self, functions: Functions, numbers: RuleNumbers, order: Column, max_bytes: int, max_repeated: int) -> None:
        """`order`: function numbers by ascending start. `max_bytes`: of text. `max_repeated`: rows of PC type MASK in all."""
        self.functions, self.numbers, self.order = functions, numbers, order
        self.max_bytes, self.max_repeated = max_bytes, max_repeated
        first: cython.Py_ssize_t = order[0]
        self.base = functions.start[first] & ~0xFF  # pages have 256 bytes (decoded_table.PAGE_BITS)
        self.budget = 0  # rows of PC type MASK that may still be written
        self.start = self.size = 0  # of the current function: its offset from `base`, and the bytes up to the next function
        self.end = 0  # offset of the end of the function before
        self.pages = self.rows = self.left_out = 0
        self.page = self.last_rule = 0  # the next page to index, and the rule of the row that was written last

    def select_function(self, position: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Set `start` and `size` for the function at a position in `order`; return its largest number of rows, 0 if left out."""
        function: cython.Py_ssize_t = self.order[position]
        distance: cython.ulonglong = self.functions.start[function] - self.base
        self.size = self.functions.size[function]
        if distance + self.size > self.max_bytes or distance > self.max_bytes:  # the sum may overflow
            self.left_out += 1
            return 0
        self.start = distance
        if position + 1 < len(self.order):
            distance = self.functions.start[self.order[position + 1]] - self.functions.start[function]
            if distance < self.size:
                self.size = distance
        if self.size == 0:
            return 0
        first_row: cython.longlong = self.functions.first_row[function]
        rows: cython.longlong = self.functions.first_row[function + 1] - first_row + 1  # one more for code before the first row
        period: cython.longlong = self.numbers.period[self.functions.kind[function]]
        if period:
            rows *= self.size // period + 1
            if rows > self.budget:
                self.left_out += 1
                return 0
            self.budget -= rows
        return rows

    def measure(self) -> None:
        """Set `rows`, `pages` and `left_out`, as the class says."""
        position: cython.Py_ssize_t
        max_rows: cython.longlong = 1  # the row after the last function
        end: cython.longlong = 0
        self.budget = self.max_repeated
        self.left_out = 0
        for position in range(len(self.order)):
            rows: cython.longlong = self.select_function(position)
            if rows:
                max_rows += rows + 1  # one more for a gap before the function
                end = self.start + self.size
        self.rows = max_rows
        self.pages = (end + 0xFF) >> 8

    @cython.locals(index="unsigned int[::1]", rows="unsigned int[::1]")
    def fill(self, index: Column, rows: Column) -> None:
        """Fill the index and the rows. `index` has an element for each page, and one more; `rows` as many as `measure` set."""
        position: cython.Py_ssize_t
        self.budget = self.max_repeated
        self.left_out = 0
        self.rows = self.page = self.last_rule = self.end = 0
        for position in range(len(self.order)):
            if self.select_function(position):
                if self.start > self.end:
                    self.append_row(index, rows, self.end, 0)
                self.append_function(index, rows, self.order[position])
                self.end = self.start + self.size
        if self.end < self.pages << 8:
            self.append_row(index, rows, self.end, 0)
        while self.page <= self.pages:
            index[self.page] = self.rows
            self.page += 1

    @cython.locals(index="unsigned int[::1]", rows="unsigned int[::1]")
    def append_function(self, index: Column, rows: Column, function: cython.Py_ssize_t) -> cython.int:
        """Append the rows of the function that `select_function` has selected, repeated if its kind has a period."""
        kind: cython.Py_ssize_t = self.functions.kind[function]
        signal: cython.Py_ssize_t = self.numbers.signal[kind]
        period: cython.longlong = self.numbers.period[kind]
        first: cython.Py_ssize_t = self.functions.first_row[function]
        end: cython.Py_ssize_t = self.functions.first_row[function + 1]
        at: cython.longlong = 0  # where the current repetition begins in the function
        row: cython.Py_ssize_t
        if first == end:
            return self.append_row(index, rows, self.start, self.numbers.without_rows[kind])
        while at < self.size:
            limit: cython.longlong = self.size - at
            if period and period < limit:
                limit = period
            if self.functions.row_start[first] > 0:
                self.append_row(index, rows, self.start + at, 0)
            last_offset: cython.longlong = -1
            for row in range(first, end):
                offset: cython.longlong = self.functions.row_start[row]
                if offset >= limit:
                    break
                if offset > last_offset:
                    rule: cython.Py_ssize_t = self.functions.row_rule[row]
                    self.append_row(index, rows, self.start + at + offset, self.numbers.of_rule[2 * rule + signal])
                    last_offset = offset
            at += limit
        return 0

    @cython.locals(index="unsigned int[::1]", rows="unsigned int[::1]")
    def append_row(self, index: Column, rows: Column, offset: cython.longlong, rule: cython.uint) -> cython.int:
        """Append a row for `offset`, unless the row before has the same rule. Offsets have to ascend."""
        if rule == self.last_rule:
            return 0
        while self.page <= offset >> 8:
            index[self.page] = self.rows
            self.page += 1
        rows[self.rows] = (rule << 16) | (offset & 0xFF)  # decoded_table.ROW_RULE_SHIFT
        self.rows += 1
        self.last_rule = rule
        return 0
