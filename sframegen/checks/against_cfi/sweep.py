"""Along the code: what the CFI says of each byte, and what a section says of it. Compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from cfi import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from cfi.columns import Bytes, Column

COMPILED: bool = cython.compiled

# What a byte of code can be, its verdict.
EQUAL, ABSENT, INEXPRESSIBLE, WRONG, UNDESCRIBED, SILENT = range(6)
RANGES = 6  # after the bytes of each verdict: ranges of the wanted one, and how many of them are recorded


@cython.final
@cython.cclass
class Walker:
    """What functions say, from address to address, as a search finds it: the function with the greatest start, the last of several.

    After `say`: `until`, the address where that ends at the latest; `function`, its number, and its `flavour`.
    """

    order = cython.declare("const unsigned int[::1]")
    start = cython.declare("const unsigned long long[::1]")
    size = cython.declare("const unsigned int[::1]")
    kind = cython.declare("const unsigned short[::1]")
    first_row = cython.declare("const unsigned int[::1]")
    row_start = cython.declare("const unsigned int[::1]")
    row_rule = cython.declare("const unsigned int[::1]")
    said = cython.declare("const int[::1]")
    flavours = cython.declare("const unsigned char[::1]")
    periods = cython.declare("const unsigned char[::1]")
    without_rows = cython.declare("const int[::1]")
    place = cython.declare("Py_ssize_t")
    low = cython.declare("unsigned long long")
    end = cython.declare("unsigned long long")
    row = cython.declare("Py_ssize_t")
    period = cython.declare("unsigned long long")
    until = cython.declare("unsigned long long")
    function = cython.declare("Py_ssize_t")
    flavour = cython.declare("int")

    def __init__(
        self,
        order: Column,
        start: Column,
        size: Column,
        kind: Column,
        first_row: Column,
        row_start: Column,
        row_rule: Column,
        said: Column,
        flavours: Bytes,
        periods: Bytes,
        without_rows: Column,
    ) -> None:
        """A FunctionTable's columns. `order`: functions by address. `said`: the number of each rule.

        Of each kind: its flavour, the period of PC type MASK or 0, and what a function without rows says, -1 for nothing.
        """
        self.order = order
        self.start = start
        self.size = size
        self.kind = kind
        self.first_row = first_row
        self.row_start = row_start
        self.row_rule = row_rule
        self.said = said
        self.flavours = flavours
        self.periods = periods
        self.without_rows = without_rows
        self.place = self.row = self.function = -1
        self.low = self.end = self.period = self.until = 0
        self.flavour = 0

    @cython.cfunc
    @cython.exceptval(-9)
    def open(self, place: cython.Py_ssize_t, limit: cython.ulonglong) -> cython.longlong:
        """Makes the function at that place in the order the current one, up to `limit` or the next one's start."""
        self.place = place
        if place == len(self.order):
            return 0
        self.function = self.order[place]
        self.low = self.start[self.function]
        self.row = self.first_row[self.function]
        self.flavour = self.flavours[self.kind[self.function]]
        self.period = self.periods[self.kind[self.function]]
        self.end = limit
        if self.low < limit and self.size[self.function] < limit - self.low:
            self.end = self.low + self.size[self.function]
        if place + 1 < len(self.order) and self.start[self.order[place + 1]] < self.end:
            self.end = self.start[self.order[place + 1]]
        return 0

    @cython.cfunc
    @cython.exceptval(-9)
    def say(self, at: cython.ulonglong, limit: cython.ulonglong) -> cython.longlong:
        """The number of the rule at `at`, or -1. From call to call `at` does not descend; `limit` lies above, and stays."""
        behind: cython.Py_ssize_t
        offset: cython.ulonglong
        base: cython.ulonglong
        if self.place < 0:
            self.open(0, limit)
        while self.place < len(self.order) and self.end <= at:
            self.open(self.place + 1, limit)
        self.until = limit
        if self.place == len(self.order):
            return -1
        if at < self.low:
            if self.low < limit:
                self.until = self.low
            return -1
        self.until = self.end
        behind = self.first_row[self.function + 1]
        if self.first_row[self.function] == behind:
            return self.without_rows[self.kind[self.function]]  # type: ignore[no-any-return]
        base = self.low
        offset = at - base
        if self.period:
            offset %= self.period
            base = at - offset
            if self.row_start[self.row] > offset:
                self.row = self.first_row[self.function]
            if self.period < self.until - base:
                self.until = base + self.period
        while self.row + 1 < behind and self.row_start[self.row + 1] <= offset:
            self.row += 1
        if self.row + 1 < behind and self.row_start[self.row + 1] < self.until - base:
            self.until = base + self.row_start[self.row + 1]
        return self.said[self.row_rule[self.row]]  # type: ignore[no-any-return]


@cython.locals(
    code_start="const unsigned long long[::1]",
    code_end="const unsigned long long[::1]",
    sayable="const unsigned char[::1]",
    compared="const unsigned char[::1]",
    found_start="unsigned long long[::1]",
    found_end="unsigned long long[::1]",
    found_function="unsigned int[::1]",
    found_expected="int[::1]",
    found_given="int[::1]",
    found_flavours="unsigned char[::1]",
    totals="unsigned long long[::1]",
)
def sweep(
    code_start: Column,
    code_end: Column,
    truth: Walker,
    left_out: Walker,
    section: Walker,
    sayable: Bytes,
    barred: cython.int,
    compared: Bytes,
    wanted: cython.int,
    found_start: Column,
    found_end: Column,
    found_function: Column,
    found_expected: Column,
    found_given: Column,
    found_flavours: Column,
    totals: Column,
) -> None:
    """Adds the bytes of each verdict to `totals`, and records the ranges of the `wanted` one as far as there is room.

    The code ascends without overlaps. `truth` says what SFrame can say of the CFI, `left_out` the reason where it cannot. By
    rule: whether the section's version can say it (with none of the `barred` flavours), and which flavours must be equal. Of a
    range is recorded the section's function, the rule expected or -1 - reason, the rule given or -1, and flavours: expected + 16 *
    given. Absent code of several rules is one range.
    """
    area: cython.Py_ssize_t
    verdict: cython.int
    flavours: cython.int
    at: cython.ulonglong
    limit: cython.ulonglong = 0
    until: cython.ulonglong
    expected: cython.longlong
    reason: cython.longlong
    given: cython.longlong
    count: cython.ulonglong = 0
    room: cython.ulonglong = len(found_start)
    last_end: cython.ulonglong = 0
    last_expected: cython.longlong = 0
    last_given: cython.longlong = 0
    last_flavours: cython.int = -1
    if len(code_end):
        limit = code_end[len(code_end) - 1]
    for area in range(len(code_start)):
        at = code_start[area]
        while at < code_end[area]:
            until = code_end[area]
            expected = truth.say(at, limit)
            if truth.until < until:
                until = truth.until
            given = section.say(at, limit)
            if section.until < until:
                until = section.until
            flavours = 0
            if expected >= 0:
                flavours = truth.flavour
                if given < 0:
                    verdict = 1 if sayable[expected] and not truth.flavour & barred else 2  # ABSENT, INEXPRESSIBLE
                elif given == expected and not (truth.flavour ^ section.flavour) & compared[expected]:
                    verdict = 0  # EQUAL
                else:
                    verdict = 3  # WRONG
            else:
                reason = left_out.say(at, limit)
                if left_out.until < until:
                    until = left_out.until
                if reason >= 0:
                    expected = -1 - reason
                    verdict = 2 if given < 0 else 3  # INEXPRESSIBLE, WRONG
                else:
                    verdict = 5 if given < 0 else 4  # SILENT, UNDESCRIBED
            if given >= 0:
                flavours |= section.flavour << 4
            if verdict == 1:
                expected = flavours = 0
            totals[verdict] += until - at
            if verdict == wanted:
                if at != last_end or expected != last_expected or given != last_given or flavours != last_flavours:
                    totals[6] += 1
                    if count < room:
                        found_start[count] = at
                        found_function[count] = section.function if given >= 0 else 0
                        found_expected[count] = expected
                        found_given[count] = given
                        found_flavours[count] = flavours
                        count += 1
                if totals[6] == count and count:
                    found_end[count - 1] = until
                last_end = until
                last_expected = expected
                last_given = given
                last_flavours = flavours
            at = until
    totals[7] = count
