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
    write: cython.bint,
) -> None:
    """Counts functions, rows and unsaid ranges; with `write`, fills their columns too (first_row: one entry more than functions).

    `flavour`: signal + 2 * key B of each CIE; `barred`: the reason why nothing under it can be said, or 255. `fate`, `value`,
    `fde_type`: of each CFI rule. Pattern p is rows pattern_at[p] .. [p + 1]. `unaligned`: the reason for a pattern where the code
    is not aligned to `period`. `counts`: functions, rows, unsaid ranges, FDE pieces said without a gap.
    A function is flexible where one of its rows needs that.
    """
    functions: cython.Py_ssize_t = 0
    rows: cython.Py_ssize_t = 0
    unsaid: cython.Py_ssize_t = 0
    whole: cython.Py_ssize_t = 0
    in_function: cython.longlong = 0  # rows of the open function; 0: none is open
    gap: cython.bint
    piece: cython.Py_ssize_t
    fde: cython.Py_ssize_t
    row: cython.Py_ssize_t
    end: cython.Py_ssize_t
    middle: cython.Py_ssize_t
    rule: cython.Py_ssize_t
    one: cython.Py_ssize_t
    reason: cython.Py_ssize_t
    open_type: cython.int = 0
    open_rule: cython.longlong = 0
    open_start: cython.ulonglong = 0
    base: cython.ulonglong
    low: cython.ulonglong
    high: cython.ulonglong
    for piece in range(len(piece_fde)):
        fde = piece_fde[piece]
        base = fde_start[fde]
        row = fde_first_row[fde]
        end = fde_first_row[fde + 1]
        in_function = 0
        gap = False
        one = end  # the last row that begins at or before the piece
        while one - row > 1:
            middle = (row + one) // 2
            if base + fde_row_start[middle] <= piece_start[piece]:
                row = middle
            else:
                one = middle
        while row < end:
            low = base + fde_row_start[row]
            if low >= piece_end[piece]:
                break
            if low < piece_start[piece]:
                low = piece_start[piece]
            high = piece_end[piece]
            if row + 1 < end and base + fde_row_start[row + 1] < high:
                high = base + fde_row_start[row + 1]
            rule = fde_row_rule[row]
            row += 1
            reason = value[rule]
            if barred[fde_cie[fde]] != 255:
                reason = barred[fde_cie[fde]]
            elif fate[rule] == 0:  # ROW
                if in_function == 0 or in_function == 0xFFFF:
                    if write:
                        start[functions] = low
                        first_row[functions] = rows
                    functions += 1
                    open_type = 0
                    open_start = low
                    in_function = 0
                if fde_type[rule]:
                    open_type = 1
                if in_function == 0 or open_rule != value[rule]:
                    if write:
                        row_start[rows] = low - open_start
                        row_rule[rows] = value[rule]
                    rows += 1
                    in_function += 1
                    open_rule = value[rule]
                if write:
                    size[functions - 1] = high - open_start
                    kind[functions - 1] = flavour[fde_cie[fde]] * 2 + open_type
                continue
            elif fate[rule] == 1 and low % period == 0:  # REPEATED
                in_function = 0
                if write:
                    start[functions] = low
                    size[functions] = high - low
                    kind[functions] = 8 + flavour[fde_cie[fde]]
                    first_row[functions] = rows
                functions += 1
                for one in range(pattern_at[value[rule]], pattern_at[value[rule] + 1]):
                    if write:
                        row_start[rows] = pattern_start[one]
                        row_rule[rows] = pattern_rule[one]
                    rows += 1
                continue
            elif fate[rule] == 1:
                reason = unaligned
            in_function = 0
            gap = True
            if write:
                unsaid_start[unsaid] = low
                unsaid_size[unsaid] = high - low
                unsaid_reason[unsaid] = reason
            unsaid += 1
        if not gap:
            whole += 1
    if write:
        first_row[functions] = rows
    counts[0] = functions
    counts[1] = rows
    counts[2] = unsaid
    counts[3] = whole
