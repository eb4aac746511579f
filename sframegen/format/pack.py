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
@cython.exceptval(-1)
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
    block_size="unsigned long long[::1]",
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
    block_size: Column,
) -> int:
    """Fills each function's FRE type, and the size in bytes of its FREs, in V3 with its attribute.

    `rule_at`[2 * rule + FDE type] .. [+ 1]: where a rule's info byte and data words stand in their blob. `kind_bytes`: info, info2,
    rep_size of each kind. `fields`: Layout.fields. Returns the first row whose FDE type has no bytes for it, -1 if there is none.
    """
    function: cython.Py_ssize_t
    row: cython.Py_ssize_t
    rule: cython.Py_ssize_t
    size: cython.longlong
    first: cython.longlong
    end: cython.longlong
    last: cython.longlong
    fde_type: cython.longlong
    width: cython.int
    for function in range(len(fre_type)):
        first = first_row[function]
        end = first_row[function + 1]
        last = row_start[end - 1] if end > first else 0
        width = 0 if last <= 0xFF else 1 if last <= 0xFFFF else 2
        fre_type[function] = width
        size = fields[5] + (end - first) * (1 << width)  # the attribute, and each row's start
        fde_type = kind_bytes[kind[function] * 3 + 1]
        for row in range(first, end):
            rule = 2 * row_rule[row] + fde_type
            if rule_at[rule + 1] == rule_at[rule]:
                return row
            size += rule_at[rule + 1] - rule_at[rule]
        block_size[function] = size
    return -1


@cython.locals(
    kind="const unsigned short[::1]",
    first_row="const unsigned int[::1]",
    row_start="const unsigned int[::1]",
    row_rule="const unsigned int[::1]",
    rule_at="const unsigned int[::1]",
    rule_bytes="const unsigned char[::1]",
    kind_bytes="const unsigned char[::1]",
    fields="const long long[::1]",
    fre_type="const unsigned char[::1]",
    seen="unsigned int[::1]",
    owner="unsigned int[::1]",
    block_at="unsigned long long[::1]",
    total="unsigned long long[::1]",
    out="unsigned char[::1]",
)
def blocks(
    kind: Column,
    first_row: Column,
    row_start: Column,
    row_rule: Column,
    rule_at: Column,
    rule_bytes: Bytes,
    kind_bytes: Bytes,
    fields: Column,
    fre_type: Column,
    seen: Column,
    owner: Column,
    block_at: Column,
    total: Column,
    out: bytearray | memoryview,
    big: cython.bint,
) -> None:
    """Writes all FREs, with V3 behind their attributes; fills where each function's are in `out`. `total`: bytes, FREs written.

    Functions whose bytes are the same share those of the first one, `owner`. `seen`: a table of a power of two entries, zeros, by a
    hash of the bytes; what it has no room for nearby is written again. With an empty one nothing is shared.
    """
    function: cython.Py_ssize_t
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    pos: cython.Py_ssize_t = 0
    begin: cython.Py_ssize_t
    other: cython.Py_ssize_t
    slot: cython.Py_ssize_t
    width: cython.Py_ssize_t
    group: cython.Py_ssize_t
    rule: cython.Py_ssize_t
    first: cython.Py_ssize_t
    end: cython.Py_ssize_t
    key: cython.longlong
    stored: cython.longlong = 0
    for function in range(len(fre_type)):
        begin = pos
        block_at[function] = begin
        owner[function] = function
        first = first_row[function]
        end = first_row[function + 1]
        group = kind[function] * 3
        if fields[4]:
            put(out, pos + fields[6], end - first, fields[7], big)
            out[pos + fields[8]] = kind_bytes[group] | fre_type[function]
            out[pos + fields[9]] = kind_bytes[group + 1]
            out[pos + fields[10]] = kind_bytes[group + 2]
        pos += fields[5]
        width = 1 << fre_type[function]
        for row in range(first, end):
            pos = put(out, pos, row_start[row], width, big)
            rule = 2 * row_rule[row] + kind_bytes[group + 1]
            for i in range(rule_at[rule], rule_at[rule + 1]):
                out[pos] = rule_bytes[i]
                pos += 1
        stored += end - first
        if len(seen) == 0:
            continue
        key = pos - begin
        for i in range(begin, pos):
            key = ((key ^ out[i]) * 0x1000193) & 0x7FFFFFFF
        slot = key & (len(seen) - 1)
        for _ in range(8):
            if seen[slot] == 0:
                seen[slot] = function + 1
                break
            other = block_at[seen[slot] - 1]
            i = 0
            while i < pos - begin and out[other + i] == out[begin + i]:
                i += 1
            if i == pos - begin:
                block_at[function] = other
                owner[function] = seen[slot] - 1
                pos = begin
                stored -= end - first
                break
            slot = (slot + 1) & (len(seen) - 1)
    total[0] = pos
    total[1] = stored


@cython.locals(
    start="const unsigned long long[::1]",
    size="const unsigned int[::1]",
    kind="const unsigned short[::1]",
    first_row="const unsigned int[::1]",
    kind_bytes="const unsigned char[::1]",
    fields="const long long[::1]",
    fre_type="const unsigned char[::1]",
    block_at="const unsigned long long[::1]",
    out="unsigned char[::1]",
)
def index(
    start: Column,
    size: Column,
    kind: Column,
    first_row: Column,
    kind_bytes: Bytes,
    fields: Column,
    fre_type: Column,
    block_at: Column,
    out: bytearray | memoryview,
    index_at: cython.Py_ssize_t,
    origin: cython.ulonglong,
    big: cython.bint,
) -> None:
    """Writes the function index. Function starts are relative to their own fields; `origin` is the address of the first one."""
    function: cython.Py_ssize_t
    entry: cython.Py_ssize_t
    group: cython.Py_ssize_t
    distance: cython.longlong
    for function in range(len(start)):
        entry = index_at + function * fields[0]
        distance = start[function] - (origin + function * fields[0])
        put(out, entry, distance, fields[1], big)
        put(out, entry + fields[2], size[function], 4, big)
        put(out, entry + fields[3], block_at[function], 4, big)
        if fields[4]:
            continue
        group = kind[function] * 3
        put(out, entry + fields[6], first_row[function + 1] - first_row[function], fields[7], big)
        out[entry + fields[8]] = kind_bytes[group] | fre_type[function]
        if fields[9] >= 0:
            out[entry + fields[9]] = kind_bytes[group + 1]
        if fields[10] >= 0:
            out[entry + fields[10]] = kind_bytes[group + 2]
