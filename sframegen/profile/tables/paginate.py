"""FunctionTable columns -> rows by ascending address, and the index over their pages (decoded_table.py). Compiled."""

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
    """The kinds and rules of functions, numbered as in the table that is made.

    `of_rule`: the number of rule r is of_rule[2 * r], in signal frames of_rule[2 * r + 1]. Of each kind: `signal` (0 or 1),
    `period` of PC type MASK (0: none), `without_rows` (the number of the rule that holds in a function of no rows).
    """

    def __init__(self, of_rule: Column, signal: Bytes, period: Bytes, without_rows: Column) -> None:
        self.of_rule = of_rule
        self.signal = signal
        self.period = period
        self.without_rows = without_rows


class Paginator:
    """Goes through functions by address, each up to where the next begins. Call `measure`, then `fill`.

    After `measure`: `pages`, the most `rows` there can be, and the number of functions that are `left_out`: their repeated
    rows are too many, or they are too far away. After `fill`: the number of `rows`.
    """

    def __init__(self, functions: Functions, numbers: RuleNumbers, order: Column, max_bytes: int, max_repeated: int) -> None:
        """`order`: numbers of all functions, so that their starts ascend. `max_bytes`: of text; `max_repeated`: rows in all."""
        self.functions = functions
        self.numbers = numbers
        self.order = order
        self.max_bytes = max_bytes
        self.max_repeated = max_repeated
        first: cython.Py_ssize_t = order[0]
        self.base = functions.start[first] & ~0xFF
        self.budget = 0
        self.start = self.limit = self.end = 0
        self.pages = self.rows = self.left_out = 0
        self.page = self.last = 0

    def take(self, place: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Set `start` and `limit` (bytes) of a function; return the most rows that it can have, 0 if it is left out."""
        function: cython.Py_ssize_t = self.order[place]
        distance: cython.ulonglong
        low: cython.longlong
        rows: cython.longlong
        period: cython.longlong
        distance = self.functions.start[function] - self.base
        self.limit = self.functions.size[function]
        if distance + self.limit > self.max_bytes or distance > self.max_bytes:
            self.left_out += 1
            return 0
        self.start = distance
        if place + 1 < len(self.order):
            distance = self.functions.start[self.order[place + 1]] - self.functions.start[function]
            if distance < self.limit:
                self.limit = distance
        if self.limit == 0:
            return 0
        low = self.functions.first_row[function]
        rows = self.functions.first_row[function + 1] - low + 1
        period = self.numbers.period[self.functions.kind[function]]
        if period:
            rows *= self.limit // period + 1
            if rows > self.budget:
                self.left_out += 1
                return 0
            self.budget -= rows
        return rows

    def measure(self) -> None:
        place: cython.Py_ssize_t
        rows: cython.longlong
        total: cython.longlong = 1
        end: cython.longlong = 0
        self.budget = self.max_repeated
        self.left_out = 0
        for place in range(len(self.order)):
            rows = self.take(place)
            if rows:
                total += rows + 1
                end = self.start + self.limit
        self.rows = total
        self.pages = (end + 0xFF) >> 8

    @cython.locals(index="unsigned int[::1]", rows="unsigned int[::1]")
    def fill(self, index: Column, rows: Column) -> None:
        """Fill the index and the rows. `index`: room for a number for each page, and one more; `rows`: as `measure` says."""
        place: cython.Py_ssize_t
        self.budget = self.max_repeated
        self.left_out = 0
        self.rows = self.page = self.last = self.end = 0
        for place in range(len(self.order)):
            if self.take(place):
                if self.start > self.end:
                    self.put(index, rows, self.end, 0)
                self.function(index, rows, self.order[place])
                self.end = self.start + self.limit
        if self.end < self.pages << 8:
            self.put(index, rows, self.end, 0)
        while self.page <= self.pages:
            index[self.page] = self.rows
            self.page += 1

    @cython.locals(index="unsigned int[::1]", rows="unsigned int[::1]")
    def function(self, index: Column, rows: Column, function: cython.Py_ssize_t) -> cython.int:
        kind: cython.Py_ssize_t = self.functions.kind[function]
        signal: cython.Py_ssize_t = self.numbers.signal[kind]
        period: cython.longlong = self.numbers.period[kind]
        first: cython.Py_ssize_t = self.functions.first_row[function]
        end: cython.Py_ssize_t = self.functions.first_row[function + 1]
        at: cython.longlong = 0
        limit: cython.longlong
        before: cython.longlong
        offset: cython.longlong
        row: cython.Py_ssize_t
        rule: cython.Py_ssize_t
        if first == end:
            return self.put(index, rows, self.start, self.numbers.without_rows[kind])
        while at < self.limit:
            limit = self.limit - at
            if period and period < limit:
                limit = period
            if self.functions.row_start[first] > 0:
                self.put(index, rows, self.start + at, 0)
            before = -1
            for row in range(first, end):
                offset = self.functions.row_start[row]
                if offset >= limit:
                    break
                if offset > before:
                    rule = self.functions.row_rule[row]
                    self.put(index, rows, self.start + at + offset, self.numbers.of_rule[2 * rule + signal])
                    before = offset
            at += limit
        return 0

    @cython.locals(index="unsigned int[::1]", rows="unsigned int[::1]")
    def put(self, index: Column, rows: Column, offset: cython.longlong, rule: cython.uint) -> cython.int:
        """Append a row: the rule holds from `offset` on, where no row begins yet."""
        if rule == self.last:
            return 0
        while self.page <= offset >> 8:
            index[self.page] = self.rows
            self.page += 1
        rows[self.rows] = (rule << 16) | (offset & 0xFF)
        self.rows += 1
        self.last = rule
        return 0
