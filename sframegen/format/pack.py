"""Columns -> bytes: sizes and writes the function index and the FREs. Compiled; encode.py checks the limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from cfi import cython_shadow as cython  # type: ignore[no-redef]


if TYPE_CHECKING:
    from cfi.columns import Bytes, Column
    from sframegen.format.reader import Fields

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
    """Writes the low `width` bytes of `value` at `pos`; the position after them."""
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
    fields="Fields",
    seen="unsigned int[::1]",
    owner="unsigned int[::1]",
    fre_type="unsigned char[::1]",
    block_size="unsigned long long[::1]",
    block_at="unsigned long long[::1]",
    total="unsigned long long[::1]",
)
def place(
    kind: Column,
    first_row: Column,
    row_start: Column,
    row_rule: Column,
    rule_at: Column,
    kind_bytes: Bytes,
    fields: Fields,
    seen: Column,
    owner: Column,
    fre_type: bytearray,
    block_size: Column,
    block_at: Column,
    total: Column,
) -> int:
    """Fills each function's FRE type, and size and place of its block: its FREs, in V3 after its attribute.

    `rule_at`: EncodedRules.at. `kind_bytes`: info, info2, rep_size of each kind. `total`: bytes and rows
    of all blocks. Functions of one kind with the same rows have the block of the first of them, `owner`. `seen`: a table of a
    power of two entries, zeros, by a hash of the rows; what it has no room for nearby has a block of its own. With an empty one
    nothing is shared. Returns the first row whose FDE type has no bytes for it, -1 if there is none.
    """
    function: cython.Py_ssize_t
    row: cython.Py_ssize_t
    other: cython.Py_ssize_t
    same: cython.Py_ssize_t
    slot: cython.Py_ssize_t
    first: cython.Py_ssize_t
    rows: cython.Py_ssize_t
    rule: cython.Py_ssize_t
    fde_type: cython.Py_ssize_t
    width: cython.int
    size: cython.longlong
    key: cython.longlong
    mask: cython.Py_ssize_t = len(seen) - 1
    at: cython.ulonglong = 0
    stored: cython.ulonglong = 0
    for function in range(len(kind)):
        first = first_row[function]
        rows = first_row[function + 1] - first
        other = function
        if mask >= 0:
            key = 8 * rows + kind[function]
            for row in range(first, first + rows):
                key = ((key ^ row_start[row]) * 0x10193 + row_rule[row]) & 0x7FFFFFFF
            slot = ((key * 0x45D9F3B) >> 24) & mask
            for _ in range(32):
                if seen[slot] == 0:
                    seen[slot] = function + 1
                    break
                other = seen[slot] - 1
                if kind[other] == kind[function] and first_row[other + 1] - first_row[other] == rows:
                    row = first_row[other]
                    same = 0
                    while same < rows and row_start[row + same] == row_start[first + same]:
                        if row_rule[row + same] != row_rule[first + same]:
                            break
                        same += 1
                    if same == rows:
                        break
                other = function
                slot = (slot + 1) & mask
        owner[function] = other
        if other != function:
            fre_type[function] = fre_type[other]
            block_size[function] = block_size[other]
            block_at[function] = block_at[other]
            continue
        width = 0
        if rows:
            width = 0 if row_start[first + rows - 1] <= 0xFF else 1 if row_start[first + rows - 1] <= 0xFFFF else 2
        size = fields.attribute_size + rows * (1 << width)  # the attribute, and each row's start
        fde_type = kind_bytes[kind[function] * 3 + 1]
        for row in range(first, first + rows):
            rule = 2 * row_rule[row] + fde_type
            if rule_at[rule + 1] == rule_at[rule]:
                return row
            size += rule_at[rule + 1] - rule_at[rule]
        fre_type[function] = width
        block_size[function] = size
        block_at[function] = at
        at += size
        stored += rows
    total[0] = at
    total[1] = stored
    return -1


@cython.locals(
    kind="const unsigned short[::1]",
    first_row="const unsigned int[::1]",
    row_start="const unsigned int[::1]",
    row_rule="const unsigned int[::1]",
    rule_at="const unsigned int[::1]",
    rule_bytes="const unsigned char[::1]",
    kind_bytes="const unsigned char[::1]",
    fields="Fields",
    fre_type="const unsigned char[::1]",
    owner="const unsigned int[::1]",
    block_at="const unsigned long long[::1]",
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
    fields: Fields,
    fre_type: Bytes,
    owner: Column,
    block_at: Column,
    out: bytearray | memoryview,
    blocks_at: cython.Py_ssize_t,
    big: cython.bint,
) -> None:
    """Writes all blocks, the first of them at out[blocks_at]."""
    function: cython.Py_ssize_t
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    pos: cython.Py_ssize_t
    width: cython.Py_ssize_t
    group: cython.Py_ssize_t
    rule: cython.Py_ssize_t
    for function in range(len(fre_type)):
        if owner[function] != function:
            continue
        pos = blocks_at + block_at[function]
        group = kind[function] * 3
        if fields.attribute_in_block:
            put(out, pos + fields.num_fres_at, first_row[function + 1] - first_row[function], fields.num_fres_width, big)
            out[pos + fields.info_at] = kind_bytes[group] | fre_type[function]
            out[pos + fields.info2_at] = kind_bytes[group + 1]
            out[pos + fields.rep_size_at] = kind_bytes[group + 2]
        pos += fields.attribute_size
        width = 1 << fre_type[function]
        for row in range(first_row[function], first_row[function + 1]):
            if width == 1:
                out[pos] = row_start[row] & 0xFF
                pos += 1
            else:
                pos = put(out, pos, row_start[row], width, big)
            rule = 2 * row_rule[row] + kind_bytes[group + 1]
            for i in range(rule_at[rule], rule_at[rule + 1]):
                out[pos] = rule_bytes[i]
                pos += 1


@cython.locals(
    start="const unsigned long long[::1]",
    size="const unsigned int[::1]",
    kind="const unsigned short[::1]",
    first_row="const unsigned int[::1]",
    kind_bytes="const unsigned char[::1]",
    fields="Fields",
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
    fields: Fields,
    fre_type: Bytes,
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
        entry = index_at + function * fields.index_size
        distance = start[function] - (origin + function * fields.index_size)
        put(out, entry, distance, fields.start_width, big)
        put(out, entry + fields.size_at, size[function], 4, big)
        put(out, entry + fields.fre_offset_at, block_at[function], 4, big)
        if fields.attribute_in_block:
            continue
        group = kind[function] * 3
        put(out, entry + fields.num_fres_at, first_row[function + 1] - first_row[function], fields.num_fres_width, big)
        out[entry + fields.info_at] = kind_bytes[group] | fre_type[function]
        if fields.info2_at >= 0:
            out[entry + fields.info2_at] = kind_bytes[group + 1]
        if fields.rep_size_at >= 0:
            out[entry + fields.rep_size_at] = kind_bytes[group + 2]
