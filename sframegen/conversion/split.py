"""Cuts FDEs into SFrame functions, and into ranges that SFrame cannot express. Compiled."""

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
    from sframegen.conversion.resolve import Pieces
    from sframegen.elf.columns import Spans
    from sframegen.format.columns import Functions


class Fate(IntEnum):
    """The fate of a CFI rule. Its `value` is then the number of an SFrame rule, of a repeated pattern, or of a reason."""

    ROW = 0
    REPEATED = 1
    LEFT_OUT = 2


if not cython.compiled:
    ROW, REPEATED, LEFT_OUT = Fate
# The number of a kind: flavour (signal + 2 * key B) * 2 + FDE type; for PC type MASK 8 + flavour.


class Cies:
    """Two columns of the CIEs: the flavour (signal + 2 * key B), and the reason why its FDEs cannot be expressed, or 255."""

    def __init__(self, flavour: Bytes, barred: Bytes) -> None:
        self.flavour = flavour
        self.barred = barred


class RuleFates:
    """The fate and value of each CFI rule, the FDE type that each SFrame rule needs, and the repeated patterns.

    Pattern p has the rows pattern_at[p] .. [p + 1], which repeat every PC_PERIOD bytes.
    """

    def __init__(
        self, fate: Bytes, value: Column, fde_type: Bytes, pattern_at: Column, pattern_start: Column, pattern_rule: Column
    ) -> None:
        self.fate = fate
        self.value = value
        self.fde_type = fde_type
        self.pattern_at = pattern_at
        self.pattern_start = pattern_start
        self.pattern_rule = pattern_rule


class Unsaid(NamedTuple):
    """The code of pieces that no function covers, by address: columns of starts, sizes and numbers of the Reason."""

    start: Column
    size: Column
    reason: Column


@cython.boundscheck(False)
@cython.locals(piece_fde="const unsigned int[::1]", counts="long long[::1]")
def bounds(pieces: Pieces, fdes: Fdes, rows: Rows, cies: Cies, rules: RuleFates, counts: Column) -> None:
    """Fills `counts` with the most functions, rows and unsaid ranges that `split` can make."""
    piece: cython.Py_ssize_t
    fde: cython.Py_ssize_t
    first: cython.Py_ssize_t
    end: cython.Py_ssize_t
    row: cython.Py_ssize_t
    rule: cython.Py_ssize_t
    made: cython.longlong = 0
    stored: cython.longlong = 0
    left: cython.longlong = 0
    piece_fde = pieces.fde
    for piece in range(len(piece_fde)):
        fde = piece_fde[piece]
        first = rows.first_row[fde]
        end = rows.first_row[fde + 1]
        made += 1 + (end - first) // 0xFFFF
        stored += end - first
        if cies.barred[fdes.cie[fde]] != 255:
            left += end - first
            continue
        for row in range(first, end):
            rule = rows.rule[row]
            if rules.fate[rule]:
                made += 2
                left += 1
                if rules.fate[rule] == REPEATED:
                    stored += rules.pattern_at[rules.value[rule] + 1] - rules.pattern_at[rules.value[rule]]
    counts[0] = made
    counts[1] = stored
    counts[2] = left


class Splitter:
    """Cuts one piece after the other into `functions` and `unsaid`, whose size `bounds` gives.

    `made`, `stored` and `left` are the numbers of functions, rows and unsaid ranges so far. Patterns can only be expressed in code
    that is aligned to their period. `floating`: code whose address modulo the period is unknown. `unaligned`: number of the
    reason why other patterns are left out.
    """

    def __init__(
        self,
        described: tuple[Fdes, Rows, Cies, RuleFates],
        functions: Functions,
        unsaid: Unsaid,
        floating: Spans,
        unaligned: cython.Py_ssize_t,
    ) -> None:
        self.fdes, self.rows, self.cies, self.rules = described
        self.functions = functions
        self.unsaid_start, self.unsaid_size, self.unsaid_reason = unsaid
        self.floating = floating
        self.unaligned = unaligned
        self.made = self.stored = self.left = 0
        self.floating_range = 0  # index of the first floating range that does not end before the piece
        self.base = self.limit = 0  # the FDE's start, the piece's end
        self.end = 0  # end of the FDE's rows

    @cython.boundscheck(False)
    def cut(self, fde: cython.Py_ssize_t, low: cython.ulonglong, limit: cython.ulonglong) -> cython.int:
        """Cuts the piece [low, limit) of an FDE: adds its functions and unsaid ranges."""
        rows: Rows = self.rows
        rules: RuleFates = self.rules
        flavour: cython.int = self.cies.flavour[self.fdes.cie[fde]]
        bar: cython.int = self.cies.barred[self.fdes.cie[fde]]
        row: cython.Py_ssize_t = rows.first_row[fde]
        rule: cython.Py_ssize_t
        fate: cython.int
        begin: cython.ulonglong
        self.base = self.fdes.start[fde]
        self.limit = limit
        self.end = rows.first_row[fde + 1]
        if low > self.base:  # the last row that begins at or before the piece
            row = max(row, bisect_right(rows.start, low - self.base, row, self.end) - 1)
        while row < self.end and low < limit:
            begin = low
            rule = rows.rule[row]
            fate = rules.fate[rule] if bar == 255 else LEFT_OUT  # NOT_BARRED
            if fate == ROW:
                row = self.add_function(row, begin, flavour)
                low = self.start_of(row)
                continue
            row += 1
            low = self.start_of(row)
            if fate == REPEATED and begin % PC_PERIOD == 0 and not self.floats(begin):
                self.add_repeated(rules.value[rule], begin, low, flavour)
                continue
            self.unsaid_start[self.left] = begin
            self.unsaid_size[self.left] = low - begin
            self.unsaid_reason[self.left] = bar if bar != 255 else self.unaligned if fate == REPEATED else rules.value[rule]
            self.left += 1
        return 0

    @cython.boundscheck(False)
    def start_of(self, row: cython.Py_ssize_t) -> cython.ulonglong:
        """Returns the address where a row of the FDE begins, at most the end of the piece."""
        if row < self.end and self.base + self.rows.start[row] < self.limit:
            return self.base + self.rows.start[row]
        return self.limit

    @cython.boundscheck(False)
    def add_function(self, row: cython.Py_ssize_t, begin: cython.ulonglong, flavour: cython.int) -> cython.Py_ssize_t:
        """Adds a function of `row`, which begins at `begin`, and the expressible rows after it; returns the next row."""
        rows: Rows = self.rows
        rules: RuleFates = self.rules
        functions: Functions = self.functions
        stored: cython.Py_ssize_t = self.stored
        low: cython.ulonglong = begin
        rule: cython.longlong
        open_rule: cython.longlong = -1
        open_type: cython.int = 0
        while True:
            rule = rules.value[rows.rule[row]]
            if open_rule != rule:
                open_rule = rule
                open_type |= rules.fde_type[rule]
                functions.row_start[stored] = low - begin
                functions.row_rule[stored] = rule
                stored += 1
            row += 1
            low = self.start_of(row)
            if low == self.limit or rules.fate[rows.rule[row]] or stored - self.stored == 0xFFFF:
                break
        functions.start[self.made] = begin
        functions.size[self.made] = low - begin
        functions.kind[self.made] = flavour * 2 + open_type
        functions.first_row[self.made] = self.stored
        self.made += 1
        self.stored = stored
        return row

    @cython.boundscheck(False)
    def add_repeated(
        self, pattern: cython.Py_ssize_t, begin: cython.ulonglong, end: cython.ulonglong, flavour: cython.int
    ) -> cython.int:
        """Adds a function of PC type MASK with the rows of a pattern."""
        rules: RuleFates = self.rules
        row: cython.Py_ssize_t
        self.functions.start[self.made] = begin
        self.functions.size[self.made] = end - begin
        self.functions.kind[self.made] = 8 + flavour
        self.functions.first_row[self.made] = self.stored
        self.made += 1
        for row in range(rules.pattern_at[pattern], rules.pattern_at[pattern + 1]):
            if rules.pattern_start[row] >= end - begin:  # GNU ld and readelf abort if a row begins after the function
                break
            self.functions.row_start[self.stored] = rules.pattern_start[row]
            self.functions.row_rule[self.stored] = rules.pattern_rule[row]
            self.stored += 1
        return 0

    def floats(self, address: cython.ulonglong) -> cython.bint:
        """True if the address modulo the period is unknown. Addresses must ascend from call to call."""
        floating: Spans = self.floating
        while self.floating_range < len(floating.end) and floating.end[self.floating_range] <= address:
            self.floating_range += 1
        return self.floating_range < len(floating.end) and floating.start[self.floating_range] <= address


@cython.boundscheck(False)
@cython.locals(
    fde="const unsigned int[::1]",
    start="const unsigned long long[::1]",
    end="const unsigned long long[::1]",
    counts="long long[::1]",
)
def split(pieces: Pieces, splitter: Splitter, counts: Column) -> None:
    """Cuts all pieces, and fills `counts`: functions, rows, unsaid ranges, pieces that functions cover without a gap.

    A function is flexible if one of its rows needs a flexible FDE.
    """
    piece: cython.Py_ssize_t
    left: cython.Py_ssize_t
    fde, start, end = pieces
    counts[3] = 0
    for piece in range(len(fde)):
        left = splitter.left
        splitter.cut(fde[piece], start[piece], end[piece])
        if splitter.left == left:
            counts[3] += 1
    splitter.functions.first_row[splitter.made] = splitter.stored
    counts[0] = splitter.made
    counts[1] = splitter.stored
    counts[2] = splitter.left
