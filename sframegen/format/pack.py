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
    first_row="const unsigned int[::1]",
    row_start="const unsigned int[::1]",
    row_rule="const unsigned int[::1]",
    rule_at="const unsigned int[::1]",
    fre_type="unsigned char[::1]",
    block_at="unsigned long long[::1]",
)
def measure(
    first_row: Column,
    row_start: Column,
    row_rule: Column,
    rule_at: Column,
    fre_type: Column,
    block_at: Column,
) -> None:
    """Fills, for each function, its FRE type and its block's offset in the FRE sub-section; block_at[n] is the sub-section's size.

    `rule_at`[r] .. [r + 1] is where rule r's info byte and data words stand in their blob.
    """
    functions: cython.Py_ssize_t = len(fre_type)
    function: cython.Py_ssize_t
    row: cython.Py_ssize_t
    size: cython.longlong = 0
    first: cython.longlong
    end: cython.longlong
    last: cython.longlong
    kind: cython.int
    for function in range(functions):
        block_at[function] = size
        first = first_row[function]
        end = first_row[function + 1]
        last = row_start[end - 1] if end > first else 0
        kind = 0 if last <= 0xFF else 1 if last <= 0xFFFF else 2
        fre_type[function] = kind
        size += 5 + (end - first) * (1 << kind)  # the attribute, and each row's start
        for row in range(first, end):
            size += rule_at[row_rule[row] + 1] - rule_at[row_rule[row]]
    block_at[functions] = size


@cython.locals(
    start="const unsigned long long[::1]",
    size="const unsigned int[::1]",
    kind="const unsigned short[::1]",
    first_row="const unsigned int[::1]",
    row_start="const unsigned int[::1]",
    row_rule="const unsigned int[::1]",
    fre_type="const unsigned char[::1]",
    block_at="const unsigned long long[::1]",
    rule_at="const unsigned int[::1]",
    rule_bytes="const unsigned char[::1]",
    kind_bytes="const unsigned char[::1]",
    out="unsigned char[::1]",
)
def write(
    start: Column,
    size: Column,
    kind: Column,
    first_row: Column,
    row_start: Column,
    row_rule: Column,
    fre_type: Column,
    block_at: Column,
    rule_at: Column,
    rule_bytes: Bytes,
    kind_bytes: Bytes,
    out: bytearray | memoryview,
    index_at: cython.Py_ssize_t,
    index_address: cython.ulonglong,
    big: cython.bint,
) -> None:
    """Writes index (at `index_at`, loaded at `index_address`) and FREs. `kind_bytes`: info, info2, rep_size of each kind."""
    functions: cython.Py_ssize_t = len(start)
    function: cython.Py_ssize_t
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t
    pos: cython.Py_ssize_t = index_at + functions * 16
    width: cython.Py_ssize_t
    group: cython.Py_ssize_t
    rule: cython.Py_ssize_t
    first: cython.Py_ssize_t
    end: cython.Py_ssize_t
    distance: cython.longlong
    for function in range(functions):
        at = index_at + function * 16
        distance = start[function] - (index_address + function * 16)
        at = put(out, at, distance, 8, big)
        at = put(out, at, size[function], 4, big)
        put(out, at, block_at[function], 4, big)
        first = first_row[function]
        end = first_row[function + 1]
        group = kind[function] * 3
        pos = put(out, pos, end - first, 2, big)
        out[pos] = kind_bytes[group] | fre_type[function]
        out[pos + 1] = kind_bytes[group + 1]
        out[pos + 2] = kind_bytes[group + 2]
        pos += 3
        width = 1 << fre_type[function]
        for row in range(first, end):
            pos = put(out, pos, row_start[row], width, big)
            rule = row_rule[row]
            for i in range(rule_at[rule], rule_at[rule + 1]):
                out[pos] = rule_bytes[i]
                pos += 1
