"""Columns -> bytes: sizes and writes the function index and the FREs. Compiled; encode.py checks the limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from cfi import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from cfi.columns import Bytes, Column

COMPILED: bool = cython.compiled


@cython.cfunc
@cython.locals(out="unsigned char[::1]")
def put(
    out: bytearray | memoryview,
    pos: cython.Py_ssize_t,
    value: cython.longlong,
    width: cython.Py_ssize_t,
    big: cython.bint,
) -> cython.Py_ssize_t:
    """Writes the low `width` bytes of `value` at `pos`; the position behind them."""
    i: cython.Py_ssize_t
    for i in range(width):
        out[pos + (width - 1 - i if big else i)] = (value >> (8 * i)) & 0xFF
    return pos + width


@cython.locals(
    kind="const unsigned short[::1]",
    first_row="const unsigned int[::1]",
    row_start="const unsigned int[::1]",
    row_rule="const unsigned int[::1]",
    rule_at="const unsigned int[::1]",
    kind_bytes="const unsigned char[::1]",
    fields="const long long[::1]",
    fre_type="unsigned char[::1]",
    block_at="unsigned long long[::1]",
)
def measure(
    kind: Column,
    first_row: Column,
    row_start: Column,
    row_rule: Column,
    rule_at: Column,
    kind_bytes: Bytes,
    fields: Column,
    fre_type: Column,
    block_at: Column,
) -> int:
    """Fills, for each function, its FRE type and its block's offset in the FRE sub-section; block_at[n] is the sub-section's size.

    `rule_at`[2 * rule + FDE type] .. [+ 1]: where a rule's info byte and data words stand in their blob. `kind_bytes`: info, info2,
    rep_size of each kind. `fields`: Layout.fields. Returns the first row whose FDE type has no bytes for it, -1 if there is none.
    """
    functions: cython.Py_ssize_t = len(fre_type)
    function: cython.Py_ssize_t
    row: cython.Py_ssize_t
    rule: cython.Py_ssize_t
    size: cython.longlong = 0
    first: cython.longlong
    end: cython.longlong
    last: cython.longlong
    fde_type: cython.longlong
    width: cython.int
    for function in range(functions):
        block_at[function] = size
        first = first_row[function]
        end = first_row[function + 1]
        last = row_start[end - 1] if end > first else 0
        width = 0 if last <= 0xFF else 1 if last <= 0xFFFF else 2
        fre_type[function] = width
        size += fields[5] + (end - first) * (1 << width)  # the attribute, and each row's start
        fde_type = kind_bytes[kind[function] * 3 + 1]
        for row in range(first, end):
            rule = 2 * row_rule[row] + fde_type
            if rule_at[rule + 1] == rule_at[rule]:
                return row
            size += rule_at[rule + 1] - rule_at[rule]
    block_at[functions] = size
    return -1


@cython.locals(
    start="const unsigned long long[::1]",
    size="const unsigned int[::1]",
    kind="const unsigned short[::1]",
    first_row="const unsigned int[::1]",
    row_start="const unsigned int[::1]",
    row_rule="const unsigned int[::1]",
    rule_at="const unsigned int[::1]",
    rule_bytes="const unsigned char[::1]",
    kind_bytes="const unsigned char[::1]",
    fields="const long long[::1]",
    fre_type="const unsigned char[::1]",
    block_at="const unsigned long long[::1]",
    out="unsigned char[::1]",
)
def write(
    start: Column,
    size: Column,
    kind: Column,
    first_row: Column,
    row_start: Column,
    row_rule: Column,
    rule_at: Column,
    rule_bytes: Bytes,
    kind_bytes: Bytes,
    fields: Column,
    fre_type: Column,
    block_at: Column,
    out: bytearray | memoryview,
    index_at: cython.Py_ssize_t,
    origin: cython.ulonglong,
    big: cython.bint,
) -> None:
    """Writes index (at `index_at`) and FREs; the columns are those of `measure`, and what it filled.

    Function starts are relative to their own fields; `origin` is the address of the first one.
    """
    functions: cython.Py_ssize_t = len(start)
    function: cython.Py_ssize_t
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    index_size: cython.Py_ssize_t = fields[0]
    fres_at: cython.Py_ssize_t = index_at + functions * index_size
    entry: cython.Py_ssize_t
    attribute: cython.Py_ssize_t
    pos: cython.Py_ssize_t
    width: cython.Py_ssize_t
    group: cython.Py_ssize_t
    rule: cython.Py_ssize_t
    first: cython.Py_ssize_t
    end: cython.Py_ssize_t
    distance: cython.longlong
    for function in range(functions):
        entry = index_at + function * index_size
        distance = start[function] - (origin + function * index_size)
        put(out, entry, distance, fields[1], big)
        put(out, entry + fields[2], size[function], 4, big)
        put(out, entry + fields[3], block_at[function], 4, big)
        first = first_row[function]
        end = first_row[function + 1]
        group = kind[function] * 3
        pos = fres_at + block_at[function]
        attribute = pos if fields[4] else entry
        pos += fields[5]
        put(out, attribute + fields[6], end - first, fields[7], big)
        out[attribute + fields[8]] = kind_bytes[group] | fre_type[function]
        if fields[9] >= 0:
            out[attribute + fields[9]] = kind_bytes[group + 1]
        if fields[10] >= 0:
            out[attribute + fields[10]] = kind_bytes[group + 2]
        width = 1 << fre_type[function]
        for row in range(first, end):
            pos = put(out, pos, row_start[row], width, big)
            rule = 2 * row_rule[row] + kind_bytes[group + 1]
            for i in range(rule_at[rule], rule_at[rule + 1]):
                out[pos] = rule_bytes[i]
                pos += 1
