"""Rows of CFI -> functions of SFrame: cuts FDEs into the ranges that SFrame can say, and finds what is left out. Compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from cfi import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from cfi.columns import Bytes, Column

COMPILED: bool = cython.compiled

# What becomes of a CFI rule, its fate; `value` is then the number of an SFrame rule, of a repeated pattern, or of a reason.
ROW, REPEATED, LEFT_OUT = 0, 1, 2
KINDS_REPEATED = 8  # kinds: flavour (signal + 2 * key B) * 2 + FDE type; from here on flavours of PC type MASK


@cython.locals(
    piece_fde="const unsigned int[::1]",
    barred="const unsigned char[::1]",
    fde_cie="const unsigned int[::1]",
    fde_first_row="const unsigned int[::1]",
    fde_row_rule="const unsigned int[::1]",
    fate="const unsigned char[::1]",
    value="const unsigned int[::1]",
    pattern_at="const unsigned int[::1]",
    counts="long long[::1]",
)
def bounds(
    piece_fde: Column,
    barred: Bytes,
    fde_cie: Column,
    fde_first_row: Column,
    fde_row_rule: Column,
    fate: Bytes,
    value: Column,
    pattern_at: Column,
    counts: Column,
) -> None:
    """The most functions, rows and unsaid ranges that `split` can make: these are `counts` then. Arguments as there."""
    piece: cython.Py_ssize_t
    fde: cython.Py_ssize_t
    first: cython.Py_ssize_t
    end: cython.Py_ssize_t
    row: cython.Py_ssize_t
    rule: cython.Py_ssize_t
    functions: cython.longlong = 0
    rows: cython.longlong = 0
    unsaid: cython.longlong = 0
    for piece in range(len(piece_fde)):
        fde = piece_fde[piece]
        first = fde_first_row[fde]
        end = fde_first_row[fde + 1]
        functions += 1 + (end - first) // 0xFFFF
        rows += end - first
        if barred[fde_cie[fde]] != 255:
            unsaid += end - first
            continue
        for row in range(first, end):
            rule = fde_row_rule[row]
            if fate[rule]:
                functions += 2
                unsaid += 1
                if fate[rule] == 1:  # REPEATED
                    rows += pattern_at[value[rule] + 1] - pattern_at[value[rule]]
    counts[0] = functions
    counts[1] = rows
    counts[2] = unsaid


@cython.locals(
    piece_fde="const unsigned int[::1]",
    piece_start="const unsigned long long[::1]",
    piece_end="const unsigned long long[::1]",
    fde_start="const unsigned long long[::1]",
    flavour="const unsigned char[::1]",
    barred="const unsigned char[::1]",
    fde_cie="const unsigned int[::1]",
    fde_first_row="const unsigned int[::1]",
    fde_row_start="const unsigned int[::1]",
    fde_row_rule="const unsigned int[::1]",
    fate="const unsigned char[::1]",
    value="const unsigned int[::1]",
    fde_type="const unsigned char[::1]",
    pattern_at="const unsigned int[::1]",
    pattern_start="const unsigned int[::1]",
    pattern_rule="const unsigned int[::1]",
    start="unsigned long long[::1]",
    size="unsigned int[::1]",
    kind="unsigned short[::1]",
    first_row="unsigned int[::1]",
    row_start="unsigned int[::1]",
    row_rule="unsigned int[::1]",
    unsaid_start="unsigned long long[::1]",
    unsaid_size="unsigned int[::1]",
    unsaid_reason="unsigned char[::1]",
    counts="long long[::1]",
)
def split(
    piece_fde: Column,
    piece_start: Column,
    piece_end: Column,
    fde_start: Column,
    flavour: Bytes,
    barred: Bytes,
    fde_cie: Column,
    fde_first_row: Column,
    fde_row_start: Column,
    fde_row_rule: Column,
    fate: Bytes,
    value: Column,
    fde_type: Bytes,
    pattern_at: Column,
    pattern_start: Column,
    pattern_rule: Column,
    period: cython.longlong,
    unaligned: cython.Py_ssize_t,
    start: Column,
    size: Column,
    kind: Column,
    first_row: Column,
    row_start: Column,
    row_rule: Column,
    unsaid_start: Column,
    unsaid_size: Column,
    unsaid_reason: bytearray,
    counts: Column,
) -> None:
    """Fills the columns of functions (first_row: one entry more), rows and unsaid ranges, which have room (`bounds`).

    `flavour`: signal + 2 * key B of each CIE; `barred`: the reason why nothing under it can be said, or 255. `fate`, `value`: of
    each CFI rule. `fde_type`: what each SFrame rule needs. Pattern p is rows pattern_at[p] .. [p + 1]. `unaligned`: the reason
    for a pattern where the code is not aligned to `period`. `counts`: functions, rows, unsaid ranges, FDE pieces said without a
    gap. A function is flexible where one of its rows needs that.
    """
    functions: cython.Py_ssize_t = 0
    rows: cython.Py_ssize_t = 0
    unsaid: cython.Py_ssize_t = 0
    whole: cython.Py_ssize_t = 0
    in_function: cython.longlong  # rows of the open function
    gap: cython.bint
    piece: cython.Py_ssize_t
    fde: cython.Py_ssize_t
    row: cython.Py_ssize_t
    end: cython.Py_ssize_t
    middle: cython.Py_ssize_t
    rule: cython.Py_ssize_t
    one: cython.Py_ssize_t
    bar: cython.int
    open_type: cython.int
    open_rule: cython.longlong
    base: cython.ulonglong
    begin: cython.ulonglong
    low: cython.ulonglong
    limit: cython.ulonglong
    for piece in range(len(piece_fde)):
        fde = piece_fde[piece]
        base = fde_start[fde]
        bar = barred[fde_cie[fde]]
        row = fde_first_row[fde]
        end = fde_first_row[fde + 1]
        limit = piece_end[piece]
        gap = False
        low = piece_start[piece]
        one = end  # the last row that begins at or before the piece
        while low > base and one - row > 1:
            middle = (row + one) // 2
            if base + fde_row_start[middle] <= low:
                row = middle
            else:
                one = middle
        while row < end and low < limit:
            begin = low
            rule = fde_row_rule[row]
            if bar == 255 and fate[rule] == 0:  # ROW: it and those after it make a function
                first_row[functions] = rows
                in_function = 0
                open_type = 0
                open_rule = -1
                while True:
                    if open_rule != value[rule]:
                        open_rule = value[rule]
                        open_type |= fde_type[open_rule]
                        row_start[rows] = low - begin
                        row_rule[rows] = open_rule
                        rows += 1
                        in_function += 1
                    row += 1
                    low = limit
                    if row == end or base + fde_row_start[row] >= limit:
                        break
                    low = base + fde_row_start[row]
                    rule = fde_row_rule[row]
                    if fate[rule] or in_function == 0xFFFF:
                        break
                start[functions] = begin
                size[functions] = low - begin
                kind[functions] = flavour[fde_cie[fde]] * 2 + open_type
                functions += 1
                continue
            row += 1
            low = limit
            if row < end and base + fde_row_start[row] < limit:
                low = base + fde_row_start[row]
            if bar == 255 and fate[rule] == 1 and begin % period == 0:  # REPEATED
                start[functions] = begin
                size[functions] = low - begin
                kind[functions] = 8 + flavour[fde_cie[fde]]
                first_row[functions] = rows
                functions += 1
                for one in range(pattern_at[value[rule]], pattern_at[value[rule] + 1]):
                    row_start[rows] = pattern_start[one]
                    row_rule[rows] = pattern_rule[one]
                    rows += 1
                continue
            gap = True
            unsaid_start[unsaid] = begin
            unsaid_size[unsaid] = low - begin
            unsaid_reason[unsaid] = bar if bar != 255 else unaligned if fate[rule] == 1 else value[rule]
            unsaid += 1
        if not gap:
            whole += 1
    first_row[functions] = rows
    counts[0] = functions
    counts[1] = rows
    counts[2] = unsaid
    counts[3] = whole
