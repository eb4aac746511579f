"""Rows of CFI -> functions of SFrame: cuts FDEs into ranges that SFrame can express, and finds the others. Compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from cfi import cython_shadow as cython  # type: ignore[no-redef]

if not cython.compiled:
    from bisect import bisect_right
if TYPE_CHECKING:
    from cfi.columns import Bytes, Column, Fdes, Rows
    from sframegen.conversion.resolve import PieceColumns
    from sframegen.elf.columns import Spans
    from sframegen.format.columns import Functions

COMPILED: bool = cython.compiled

# What becomes of a CFI rule, its fate; `value` is then the number of an SFrame rule, of a repeated pattern, or of a reason.
ROW, REPEATED, LEFT_OUT = 0, 1, 2
KINDS_REPEATED = 8  # kinds: flavour (signal + 2 * key B) * 2 + FDE type; from here on flavours of PC type MASK


class Cies:
    """For each CIE: its flavour, signal + 2 * key B; the reason why nothing under it can be expressed, or 255."""

    def __init__(self, flavour: Bytes, barred: Bytes) -> None:
        self.flavour = flavour
        self.barred = barred


class Alignment:
    """Where patterns can be expressed: in code that is aligned to their period.

    `floating`: code whose address modulo the period is not known. `unaligned`: the reason why patterns elsewhere are left out.
    """

    def __init__(self, period: int, floating: Spans, unaligned: int) -> None:
        self.period = period
        self.floating = floating
        self.unaligned = unaligned


class RuleFates:
    """For each CFI rule its fate and value; of each SFrame rule the FDE type that it needs.

    Pattern p is rows pattern_at[p] .. [p + 1], which repeat after the alignment's period.
    """

    def __init__(
        self,
        fate: Bytes,
        value: Column,
        fde_type: Bytes,
        pattern_at: Column,
        pattern_start: Column,
        pattern_rule: Column,
        alignment: Alignment,
    ) -> None:
        self.fate = fate
        self.value = value
        self.fde_type = fde_type
        self.pattern_at = pattern_at
        self.pattern_start = pattern_start
        self.pattern_rule = pattern_rule
        self.alignment = alignment


class UnsaidColumns:
    """The code of pieces that no function covers, by address: start, size, and number of the reason."""

    def __init__(self, start: Column, size: Column, reason: Column) -> None:
        self.start = start
        self.size = size
        self.reason = reason


@cython.boundscheck(False)
@cython.locals(counts="long long[::1]")
def bounds(pieces: PieceColumns, fdes: Fdes, rows: Rows, cies: Cies, rules: RuleFates, counts: Column) -> None:
    """The most functions, rows and unsaid ranges that `split` can make: these are `counts` then."""
    piece: cython.Py_ssize_t
    fde: cython.Py_ssize_t
    first: cython.Py_ssize_t
    end: cython.Py_ssize_t
    row: cython.Py_ssize_t
    rule: cython.Py_ssize_t
    made: cython.longlong = 0
    stored: cython.longlong = 0
    left: cython.longlong = 0
    for piece in range(len(pieces.fde)):
        fde = pieces.fde[piece]
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
                if rules.fate[rule] == 1:  # REPEATED
                    stored += rules.pattern_at[rules.value[rule] + 1] - rules.pattern_at[rules.value[rule]]
    counts[0] = made
    counts[1] = stored
    counts[2] = left


@cython.boundscheck(False)
@cython.locals(counts="long long[::1]")
def split(
    pieces: PieceColumns,
    fdes: Fdes,
    rows: Rows,
    cies: Cies,
    rules: RuleFates,
    functions: Functions,
    unsaid: UnsaidColumns,
    counts: Column,
) -> None:
    """Fills the functions and the unsaid ranges, which have room (`bounds`).

    `counts`: functions, rows, unsaid ranges, pieces that functions cover without a gap. A function is flexible where one of its
    rows needs that.
    """
    made: cython.Py_ssize_t = 0
    stored: cython.Py_ssize_t = 0
    left: cython.Py_ssize_t = 0
    whole: cython.Py_ssize_t = 0
    alignment: Alignment = rules.alignment
    floating: Spans = alignment.floating
    place: cython.Py_ssize_t = 0
    floats: cython.bint
    in_function: cython.longlong  # rows of the open function
    gap: cython.bint
    piece: cython.Py_ssize_t
    fde: cython.Py_ssize_t
    row: cython.Py_ssize_t
    end: cython.Py_ssize_t
    rule: cython.Py_ssize_t
    one: cython.Py_ssize_t
    bar: cython.int
    open_type: cython.int
    open_rule: cython.longlong
    base: cython.ulonglong
    begin: cython.ulonglong
    low: cython.ulonglong
    limit: cython.ulonglong
    for piece in range(len(pieces.fde)):
        fde = pieces.fde[piece]
        base = fdes.start[fde]
        bar = cies.barred[fdes.cie[fde]]
        row = rows.first_row[fde]
        end = rows.first_row[fde + 1]
        limit = pieces.end[piece]
        gap = False
        low = pieces.start[piece]
        if low > base:  # the last row that begins at or before the piece
            row = max(row, bisect_right(rows.start, low - base, row, end) - 1)
        while row < end and low < limit:
            begin = low
            rule = rows.rule[row]
            if bar == 255 and rules.fate[rule] == 0:  # ROW: it and those after it make a function
                functions.first_row[made] = stored
                in_function = 0
                open_type = 0
                open_rule = -1
                while True:
                    if open_rule != rules.value[rule]:
                        open_rule = rules.value[rule]
                        open_type |= rules.fde_type[open_rule]
                        functions.row_start[stored] = low - begin
                        functions.row_rule[stored] = open_rule
                        stored += 1
                        in_function += 1
                    row += 1
                    low = limit
                    if row == end or base + rows.start[row] >= limit:
                        break
                    low = base + rows.start[row]
                    rule = rows.rule[row]
                    if rules.fate[rule] or in_function == 0xFFFF:
                        break
                functions.start[made] = begin
                functions.size[made] = low - begin
                functions.kind[made] = cies.flavour[fdes.cie[fde]] * 2 + open_type
                made += 1
                continue
            row += 1
            low = limit
            if row < end and base + rows.start[row] < limit:
                low = base + rows.start[row]
            while place < len(floating.end) and floating.end[place] <= begin:
                place += 1
            floats = place < len(floating.end) and floating.start[place] <= begin
            if bar == 255 and rules.fate[rule] == 1 and begin % alignment.period == 0 and not floats:  # REPEATED
                functions.start[made] = begin
                functions.size[made] = low - begin
                functions.kind[made] = 8 + cies.flavour[fdes.cie[fde]]
                functions.first_row[made] = stored
                made += 1
                for one in range(rules.pattern_at[rules.value[rule]], rules.pattern_at[rules.value[rule] + 1]):
                    if rules.pattern_start[one] >= low - begin:  # GNU ld and readelf end where a row begins after the function
                        break
                    functions.row_start[stored] = rules.pattern_start[one]
                    functions.row_rule[stored] = rules.pattern_rule[one]
                    stored += 1
                continue
            gap = True
            unsaid.start[left] = begin
            unsaid.size[left] = low - begin
            unsaid.reason[left] = bar if bar != 255 else alignment.unaligned if rules.fate[rule] == 1 else rules.value[rule]
            left += 1
        if not gap:
            whole += 1
    functions.first_row[made] = stored
    counts[0] = made
    counts[1] = stored
    counts[2] = left
    counts[3] = whole
