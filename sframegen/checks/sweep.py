"""Compares the rule of the CFI with that of the section for each byte of code. Compiled.

Rules have numbers here, the same for equal rules of both. A rule also has flavours, bits for properties besides its values: it is
for a signal frame, or it is signed with key B (against_cfi.py). A walker for each table gives the rule at ascending addresses, and
how far it holds, so that code is compared range by range. The result is the bytes of each Verdict, and the ranges of one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from sframegen.base.columns import Bytes, Column
    from sframegen.elf.columns import Spans
    from sframegen.format.columns import Functions

COMPILED: bool = cython.compiled

if not cython.compiled:
    EQUAL, ABSENT, INEXPRESSIBLE, WRONG, UNDESCRIBED, SILENT = range(6)  # as in sweep.pxd


class Terms:
    """What the section's version can express. `expressible`, by rule: 1 if it can express the rule.

    `compared`, by rule: the flavours that must be equal. `barred`: the flavours that the version cannot express.
    """

    def __init__(self, expressible: Bytes, compared: Bytes, barred: int) -> None:
        self.expressible = expressible
        self.compared = compared
        self.barred = barred


class VerdictRanges:
    """Ranges with one verdict, as far as there is room for them: the first `count` of `total` ranges.

    A range has the section's function, the CFI's rule or -1 - reason (`expected`), the section's or -1 (`given`), and flavours:
    the CFI's + 16 * the section's.
    """

    def __init__(self, start: Column, end: Column, function: Column, expected: Column, given: Column, flavours: Column) -> None:
        self.start = start
        self.end = end
        self.function = function
        self.expected = expected
        self.given = given
        self.flavours = flavours
        self.count = self.total = 0  # ranges: recorded here, and in all
        self.last_end = self.last_expected = self.last_given = 0
        self.last_flavours = -1

    def add(
        self, start: cython.ulonglong, end: cython.ulonglong, function: cython.Py_ssize_t, expected: cython.longlong,
        given: cython.longlong, flavours: cython.int,
    ) -> cython.int:  # fmt: skip
        """Add a range, or extend the last one if it only continues. `function` is ignored if `given` is negative."""
        is_new: cython.bint = expected != self.last_expected or given != self.last_given or flavours != self.last_flavours
        if is_new or start != self.last_end:
            self.total += 1
            if self.count < len(self.start):
                self.start[self.count] = start
                self.function[self.count] = function if given >= 0 else 0
                self.expected[self.count] = expected
                self.given[self.count] = given
                self.flavours[self.count] = flavours
                self.count += 1
        if self.total == self.count:  # the last range is recorded
            self.end[self.count - 1] = end
        self.last_end = end
        self.last_expected = expected
        self.last_given = given
        self.last_flavours = flavours
        return 0


class RuleWalker:
    """Gives the rule that a look-up finds at ascending addresses: a rule of the last function that starts at or before the address.

    `rule_at` also sets `until`, the address up to which its result holds, and `function` and `flavour`, those of the function.
    """

    def __init__(
        self, order: Column, functions: Functions, rule_numbers: Column, flavours: Bytes, periods: Bytes, without_rows: Column
    ) -> None:
        """`order`: functions by address; empty if they already are in that order. `rule_numbers`: the number of each rule.

        The other columns are by kind: its flavour, its period for PC type MASK or 0, and the rule of a function without rows or -1.
        """
        self.order = order
        self.functions = functions
        self.rule_numbers = rule_numbers
        self.flavours = flavours
        self.periods = periods
        self.without_rows = without_rows
        self.position = self.row = self.function = -1
        self.low = self.end = self.period = self.until = 0
        self.flavour = 0

    def open_function(self, position: cython.Py_ssize_t, limit: cython.ulonglong) -> cython.Py_ssize_t:
        """Make the function at index `position` of the order the current one. It ends by `limit` and by the next one's start."""
        following: cython.Py_ssize_t
        self.position = position
        if position == len(self.functions.start):
            return 0
        self.function = self.order[position] if len(self.order) else position
        self.low = self.functions.start[self.function]
        self.row = self.functions.first_row[self.function]
        self.flavour = self.flavours[self.functions.kind[self.function]]
        self.period = self.periods[self.functions.kind[self.function]]
        self.end = limit
        if self.low < limit and self.functions.size[self.function] < limit - self.low:
            self.end = self.low + self.functions.size[self.function]
        if position + 1 < len(self.functions.start):
            following = self.order[position + 1] if len(self.order) else position + 1
            if self.functions.start[following] < self.end:
                self.end = self.functions.start[following]
        return 0

    def rule_at(self, at: cython.ulonglong, limit: cython.ulonglong) -> cython.Py_ssize_t:
        """Return the number of the rule at `at`, or -1. From call to call, `at` must not descend, and `limit` must be the same."""
        last: cython.Py_ssize_t
        offset: cython.ulonglong
        base: cython.ulonglong
        if self.position < 0:
            self.open_function(0, limit)
        while self.position < len(self.functions.start) and self.end <= at:
            self.open_function(self.position + 1, limit)
        self.until = limit
        if self.position == len(self.functions.start):
            return -1
        if at < self.low:
            if self.low < limit:
                self.until = self.low
            return -1
        self.until = self.end
        last = self.functions.first_row[self.function + 1]
        if self.functions.first_row[self.function] == last:
            return self.without_rows[self.functions.kind[self.function]]
        base = self.low
        offset = at - base
        if self.period:
            offset %= self.period
            base = at - offset  # where this repetition of the rows begins
            if self.functions.row_start[self.row] > offset:
                self.row = self.functions.first_row[self.function]
            if self.period < self.until - base:
                self.until = base + self.period
        while self.row + 1 < last and self.functions.row_start[self.row + 1] <= offset:
            self.row += 1
        if self.row + 1 < last and self.functions.row_start[self.row + 1] < self.until - base:
            self.until = base + self.functions.row_start[self.row + 1]
        return self.rule_numbers[self.functions.row_rule[self.row]]


@cython.locals(totals="unsigned long long[::1]")
def sweep(
    code: Spans, truth: RuleWalker, left_out: RuleWalker, section: RuleWalker, terms: Terms, recorded_verdict: cython.int,
    recorded: VerdictRanges, totals: Column,
) -> None:  # fmt: skip
    """Add the bytes of each verdict to `totals`, and the ranges of `recorded_verdict` to `recorded`.

    `truth`: the part of the CFI that SFrame can express. `left_out`: the reasons for the rest. Adjacent absent code is one range.
    """
    range_index: cython.Py_ssize_t
    verdict: cython.int
    flavours: cython.int
    at: cython.ulonglong
    limit: cython.ulonglong = 0
    until: cython.ulonglong
    expected: cython.longlong
    reason: cython.longlong
    given: cython.longlong
    if len(code.end):
        limit = code.end[len(code.end) - 1]
    for range_index in range(len(code.start)):
        at = code.start[range_index]
        while at < code.end[range_index]:
            expected = truth.rule_at(at, limit)
            given = section.rule_at(at, limit)
            until = min(code.end[range_index], truth.until, section.until)
            flavours = 0
            if expected >= 0:
                flavours = truth.flavour
                if given < 0:
                    verdict = ABSENT if terms.expressible[expected] and not truth.flavour & terms.barred else INEXPRESSIBLE
                elif given == expected and not (truth.flavour ^ section.flavour) & terms.compared[expected]:
                    verdict = EQUAL
                else:
                    verdict = WRONG
            else:
                reason = left_out.rule_at(at, limit)
                until = min(until, left_out.until)
                if reason >= 0:
                    expected = -1 - reason
                    verdict = INEXPRESSIBLE if given < 0 else WRONG
                else:
                    verdict = SILENT if given < 0 else UNDESCRIBED
            if given >= 0:
                flavours |= section.flavour << 4
            if verdict == ABSENT:
                expected = flavours = 0
            totals[verdict] += until - at
            if verdict == recorded_verdict:
                recorded.add(at, until, section.function, expected, given, flavours)
            at = until
