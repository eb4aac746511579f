"""Splits the code of FDEs into SFrame functions, and into ranges that SFrame cannot express. Compiled.

The input is the range of code that each FDE describes (resolve.py), its CFI rows, and what each CFI rule translates to. Adjacent
rows with an SFrame rule become one function. A row whose rule is a repeated pattern becomes a function of PC type MASK. Any other
row becomes an uncovered range with a Reason.
"""

from __future__ import annotations

from enum import IntEnum

from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if not cython.compiled:
    from bisect import bisect_right

    from cfi.expression import PC_PERIOD
if TYPE_CHECKING:
    from sframegen.base.columns import Bytes, Column, Fdes, Rows
    from sframegen.conversion.resolve import FdeRanges
    from sframegen.elf.columns import Spans
    from sframegen.format.columns import Functions


class RuleOutcome(IntEnum):
    """The kind of result that a CFI rule translates to. The comments say what its `value` in RuleColumns is."""

    ROW = 0  # number of an SFrame rule
    REPEATED = 1  # number of a repeated pattern
    LEFT_OUT = 2  # number of the Reason why SFrame cannot express the rule


if not cython.compiled:
    ROW, REPEATED, LEFT_OUT = RuleOutcome
# A function's kind is a number: frame flags * 2 + FDE type, or 8 + frame flags for PC type MASK; CieColumns has the frame flags.


class CieColumns:
    """The frame flags of each CIE (1: signal frames; 2: key B), and the Reason why SFrame cannot express its FDEs, or 255."""

    def __init__(self, frame_flags: Bytes, reason: Bytes) -> None:
        self.frame_flags = frame_flags
        self.reason = reason


class RuleColumns:
    """The RuleOutcome and value of each CFI rule, the FDE type that each SFrame rule needs, and the repeated patterns.

    Pattern p has the rows from pattern_at[p] up to pattern_at[p + 1], which repeat every PC_PERIOD bytes.
    """

    def __init__(
        self, outcome: Bytes, value: Column, fde_type: Bytes, pattern_at: Column, pattern_start: Column, pattern_rule: Column
    ) -> None:
        self.outcome = outcome
        self.value = value
        self.fde_type = fde_type
        self.pattern_at = pattern_at
        self.pattern_start = pattern_start
        self.pattern_rule = pattern_rule


class UncoveredRanges(NamedTuple):
    """The parts of FDE ranges that no function covers, ascending: columns of starts, sizes and numbers of the Reason."""

    start: Column
    size: Column
    reason: Column


@cython.boundscheck(False)
@cython.locals(range_fde="const unsigned int[::1]", counts="long long[::1]")
def count_maxima(fde_ranges: FdeRanges, fdes: Fdes, rows: Rows, cies: CieColumns, rules: RuleColumns, counts: Column) -> None:
    """Fills `counts` with the most functions, rows and uncovered ranges that `split_ranges` can make."""
    number: cython.Py_ssize_t
    fde: cython.Py_ssize_t
    first: cython.Py_ssize_t
    end: cython.Py_ssize_t
    row: cython.Py_ssize_t
    rule: cython.Py_ssize_t
    function_count: cython.longlong = 0
    row_count: cython.longlong = 0
    uncovered_count: cython.longlong = 0
    range_fde = fde_ranges.fde
    for number in range(len(range_fde)):
        fde = range_fde[number]
        first = rows.first_row[fde]
        end = rows.first_row[fde + 1]
        function_count += 1 + (end - first) // 0xFFFF  # MAX_FUNCTION_ROWS
        row_count += end - first
        if cies.reason[fdes.cie[fde]] != 255:  # NO_REASON
            uncovered_count += end - first
            continue
        for row in range(first, end):
            rule = rows.rule[row]
            if rules.outcome[rule] != ROW:
                function_count += 2  # a pattern's function, and another one after it
                uncovered_count += 1
                if rules.outcome[rule] == REPEATED:
                    row_count += rules.pattern_at[rules.value[rule] + 1] - rules.pattern_at[rules.value[rule]]
    counts[0] = function_count
    counts[1] = row_count
    counts[2] = uncovered_count


class Splitter:
    """Splits one FDE range after the other into `functions` and `uncovered`, which have the room that `count_maxima` gives.

    The three counts are those so far. SFrame can only express a pattern in code that is aligned to its period. `floating`: code
    whose address modulo the period is unknown. `unaligned_reason`: number of the Reason why patterns elsewhere are left out.
    """

    def __init__(
        self, columns: tuple[Fdes, Rows, CieColumns, RuleColumns], functions: Functions, uncovered: UncoveredRanges,
        floating: Spans, unaligned_reason: cython.Py_ssize_t,
    ) -> None:  # fmt: skip
        self.fdes, self.rows, self.cies, self.rules = columns
        self.functions = functions
        self.uncovered_start, self.uncovered_size, self.uncovered_reason = uncovered
        self.floating = floating
        self.unaligned_reason = unaligned_reason
        self.function_count = self.row_count = self.uncovered_count = 0
        self.floating_range = 0  # index of the first floating range that does not end before the FDE range
        self.base = self.limit = 0  # start of the FDE, end of its range
        self.end = 0  # end of the FDE's rows

    @cython.boundscheck(False)
    def split_fde_range(self, fde: cython.Py_ssize_t, low: cython.ulonglong, limit: cython.ulonglong) -> cython.int:
        """Adds the functions and uncovered ranges of [low, limit), a part of the FDE's code."""
        rows: Rows = self.rows
        rules: RuleColumns = self.rules
        frame_flags: cython.int = self.cies.frame_flags[self.fdes.cie[fde]]
        cie_reason: cython.int = self.cies.reason[self.fdes.cie[fde]]
        row: cython.Py_ssize_t = rows.first_row[fde]
        rule: cython.Py_ssize_t
        outcome: cython.int
        begin: cython.ulonglong
        self.base = self.fdes.start[fde]
        self.limit = limit
        self.end = rows.first_row[fde + 1]
        if low > self.base:  # find the last row that begins at or before `low`
            row = max(row, bisect_right(rows.start, low - self.base, row, self.end) - 1)
        while row < self.end and low < limit:
            begin = low
            rule = rows.rule[row]
            outcome = rules.outcome[rule] if cie_reason == 255 else LEFT_OUT  # NO_REASON
            if outcome == ROW:
                row = self.add_function(row, begin, frame_flags)
                low = self.row_address(row)
                continue
            row += 1
            low = self.row_address(row)
            if outcome == REPEATED and begin % PC_PERIOD == 0 and not self.has_unknown_residue(begin):
                self.add_repeated(rules.value[rule], begin, low, frame_flags)
                continue
            self.uncovered_start[self.uncovered_count] = begin
            self.uncovered_size[self.uncovered_count] = low - begin
            self.uncovered_reason[self.uncovered_count] = (
                cie_reason if cie_reason != 255 else self.unaligned_reason if outcome == REPEATED else rules.value[rule]
            )
            self.uncovered_count += 1
        return 0

    @cython.boundscheck(False)
    def row_address(self, row: cython.Py_ssize_t) -> cython.ulonglong:
        """Returns the address where a row of the FDE begins, at most the end of the FDE range."""
        if row < self.end and self.base + self.rows.start[row] < self.limit:
            return self.base + self.rows.start[row]
        return self.limit

    @cython.boundscheck(False)
    def add_function(self, row: cython.Py_ssize_t, begin: cython.ulonglong, frame_flags: cython.int) -> cython.Py_ssize_t:
        """Adds a function with `row`, which begins at `begin`, and the expressible rows after it; returns the next row."""
        rows: Rows = self.rows
        rules: RuleColumns = self.rules
        functions: Functions = self.functions
        row_count: cython.Py_ssize_t = self.row_count
        low: cython.ulonglong = begin
        rule: cython.longlong
        last_rule: cython.longlong = -1
        fde_type: cython.int = 0
        while True:
            rule = rules.value[rows.rule[row]]
            if last_rule != rule:
                last_rule = rule
                fde_type |= rules.fde_type[rule]
                functions.row_start[row_count] = low - begin
                functions.row_rule[row_count] = rule
                row_count += 1
            row += 1
            low = self.row_address(row)
            # 0xFFFF is MAX_FUNCTION_ROWS.
            if low == self.limit or rules.outcome[rows.rule[row]] != ROW or row_count - self.row_count == 0xFFFF:
                break
        functions.start[self.function_count] = begin
        functions.size[self.function_count] = low - begin
        functions.kind[self.function_count] = frame_flags * 2 + fde_type
        functions.first_row[self.function_count] = self.row_count
        self.function_count += 1
        self.row_count = row_count
        return row

    @cython.boundscheck(False)
    def add_repeated(
        self, pattern: cython.Py_ssize_t, begin: cython.ulonglong, end: cython.ulonglong, frame_flags: cython.int
    ) -> cython.int:
        """Adds a function of PC type MASK with the rows of a pattern."""
        rules: RuleColumns = self.rules
        row: cython.Py_ssize_t
        self.functions.start[self.function_count] = begin
        self.functions.size[self.function_count] = end - begin
        self.functions.kind[self.function_count] = 8 + frame_flags
        self.functions.first_row[self.function_count] = self.row_count
        self.function_count += 1
        for row in range(rules.pattern_at[pattern], rules.pattern_at[pattern + 1]):
            if rules.pattern_start[row] >= end - begin:  # GNU ld and readelf abort if a row begins after the function
                break
            self.functions.row_start[self.row_count] = rules.pattern_start[row]
            self.functions.row_rule[self.row_count] = rules.pattern_rule[row]
            self.row_count += 1
        return 0

    def has_unknown_residue(self, address: cython.ulonglong) -> cython.bint:
        """True if the linker decides the address modulo PC_PERIOD. Addresses must ascend from call to call."""
        floating: Spans = self.floating
        while self.floating_range < len(floating.end) and floating.end[self.floating_range] <= address:
            self.floating_range += 1
        return self.floating_range < len(floating.end) and floating.start[self.floating_range] <= address


@cython.boundscheck(False)
@cython.locals(
    fde="const unsigned int[::1]", start="const unsigned long long[::1]", end="const unsigned long long[::1]",
    counts="long long[::1]",
)  # fmt: skip
def split_ranges(fde_ranges: FdeRanges, splitter: Splitter, counts: Column) -> None:
    """Splits all FDE ranges. Fills `counts`: functions, rows, uncovered ranges, FDE ranges that functions cover without a gap.

    A function is flexible if one of its rows needs a flexible FDE.
    """
    number: cython.Py_ssize_t
    uncovered_count: cython.Py_ssize_t
    fde, start, end = fde_ranges
    counts[3] = 0
    for number in range(len(fde)):
        uncovered_count = splitter.uncovered_count
        splitter.split_fde_range(fde[number], start[number], end[number])
        if splitter.uncovered_count == uncovered_count:
            counts[3] += 1
    splitter.functions.first_row[splitter.function_count] = splitter.row_count
    counts[0] = splitter.function_count
    counts[1] = splitter.row_count
    counts[2] = splitter.uncovered_count
