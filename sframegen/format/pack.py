"""Places and writes the parts of a section: its function index, and its blocks. Compiled; encode.py checks the limits.

A block is the FREs of a function, in V3 after the function's attribute. `place_blocks` gives each function a block, perhaps that of
an earlier function with the same kind and rows; `write_blocks` and `write_index` then write the bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if not cython.compiled:
    from sframegen.base.cython_shadow import prefetch
    from sframegen.format.fre_bytes import fde_type_known, fre_type_for, start_width
if TYPE_CHECKING:
    from sframegen.base.columns import Column
    from sframegen.format.columns import Blocks, Functions, Words
    from sframegen.format.section_bytes import Fields

COMPILED: bool = cython.compiled


class OutputBytes:
    """An output buffer. Its array cannot change size while this object exists."""

    def __init__(self, data: Column, big: bool) -> None:
        """`big`: True for big-endian output."""
        self.data = data
        self.big = big

    def put(self, pos: cython.Py_ssize_t, value: cython.longlong, width: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Write the low `width` bytes of `value` at `pos`; return the position after them."""
        i: cython.Py_ssize_t
        for i in range(width):
            self.data[pos + (width - 1 - i if self.big else i)] = (value >> (8 * i)) & 0xFF
        return pos + width


@cython.boundscheck(False)
@cython.locals(same_rows_as="const unsigned int[::1]")
def are_consistent(functions: Functions, words: Words, blocks: Blocks, same_rows_as: Column) -> bool:
    """True if all columns have the right length, and every number of a row, rule or kind is valid.

    The other loops here and in join.py rely on this, and do not check bounds again.
    """
    count: cython.Py_ssize_t = len(functions.kind)
    rows: cython.Py_ssize_t = len(functions.row_rule)
    kinds: cython.Py_ssize_t = len(words.kind_bytes) // 3
    rules: cython.Py_ssize_t = (len(words.rule_at) - 1) // 2
    i: cython.Py_ssize_t
    wrong: cython.bint = len(functions.first_row) != count + 1 or len(functions.row_start) != rows or len(words.rule_at) == 0
    for i in (len(functions.start), len(functions.size), len(blocks.fre_type), len(blocks.size), len(blocks.at), len(blocks.owner)):
        wrong |= i != count
    if wrong or (len(same_rows_as) != 0 and len(same_rows_as) != count) or functions.first_row[count] > rows:
        return False
    for i in range(count):
        wrong |= functions.first_row[i] > functions.first_row[i + 1]
    for i in range(count):
        wrong |= functions.kind[i] >= kinds
    for i in range(kinds):
        wrong |= not fde_type_known(words.kind_bytes[3 * i + 1])
    for i in range(functions.first_row[0], functions.first_row[count]):
        wrong |= functions.row_rule[i] >= rules
    return not wrong


@cython.boundscheck(False)
@cython.locals(
    same_rows_as="const unsigned int[::1]", row_hashes="unsigned int[::1]", first_row="const unsigned int[::1]",
    row_start="const unsigned int[::1]", row_rule="const unsigned int[::1]",
)  # fmt: skip
def hash_rows(functions: Functions, same_rows_as: Column, row_hashes: Column) -> None:
    """Fill `row_hashes` with a hash of each function's kind and rows, unless `same_rows_as` names an earlier function.

    `same_rows_as`: as in `place_blocks`. The columns have passed `are_consistent`.
    """
    first_row = functions.first_row
    row_start = functions.row_start
    row_rule = functions.row_rule
    function: cython.Py_ssize_t
    row: cython.Py_ssize_t
    row_hash: cython.longlong
    for function in range(len(row_hashes)):
        if len(same_rows_as) and same_rows_as[function] < function:
            continue
        row_hash = 8 * (first_row[function + 1] - first_row[function]) + functions.kind[function]
        for row in range(first_row[function], first_row[function + 1]):
            row_hash = ((row_hash ^ row_start[row]) * 0x10193 + row_rule[row]) & 0x7FFFFFFF
        row_hashes[function] = row_hash


@cython.boundscheck(False)
@cython.locals(
    same_rows_as="const unsigned int[::1]", row_hashes="const unsigned int[::1]", slots="unsigned int[::1]",
    totals="unsigned long long[::1]",
)  # fmt: skip
def place_blocks(
    functions: Functions, words: Words, fields: Fields, blocks: Blocks, same_rows_as: Column, row_hashes: Column,
    slots: Column, totals: Column,
) -> int:  # fmt: skip
    """Fill `blocks`: the FRE type, size and offset of each function's block, which is its FREs, in V3 after its attribute.

    Return the first row that its FDE type cannot express, or -1. `totals` gets the number of bytes and of rows in all blocks.
    Functions of one kind with the same rows share the block of the first, their `owner`. `same_rows_as`: for each function its own
    number, or that of an earlier one that is known to have the same kind and rows; may be empty. `row_hashes`: filled by
    `hash_rows`; empty to share nothing. `slots`: a hash table of zeros, a power of two of pairs (function + 1, its hash);
    functions that do not find a slot do not share. The columns have passed `are_consistent`.
    """
    function: cython.Py_ssize_t
    owner: cython.Py_ssize_t
    bad_row: cython.Py_ssize_t
    at: cython.ulonglong = 0
    stored_rows: cython.ulonglong = 0
    for function in range(len(functions.kind)):
        owner = function
        if len(row_hashes):
            prefetch_later_functions(functions, row_hashes, slots, function)
            if len(same_rows_as):
                owner = same_rows_as[function]
            owner = blocks.owner[owner] if owner < function else find_same_before(functions, row_hashes, slots, function)
        blocks.owner[function] = owner
        if owner != function:
            blocks.fre_type[function] = blocks.fre_type[owner]
            blocks.size[function] = blocks.size[owner]
            blocks.at[function] = blocks.at[owner]
            continue
        bad_row = measure_block(functions, words, fields, blocks, function)
        if bad_row >= 0:
            return bad_row
        blocks.at[function] = at
        at += blocks.size[function]
        stored_rows += functions.first_row[function + 1] - functions.first_row[function]
    totals[0] = at
    totals[1] = stored_rows
    return -1


@cython.boundscheck(False)
def prefetch_later_functions(functions: Functions, row_hashes: Column, slots: Column, function: cython.Py_ssize_t) -> cython.int:
    """Prefetch the memory that `find_same_before` will read for later functions."""
    mask: cython.Py_ssize_t = (len(slots) >> 1) - 1
    row: cython.Py_ssize_t
    if function + 16 < len(row_hashes) and cython.compiled:
        prefetch(cython.address(slots[2 * slot_of(row_hashes[function + 16], mask)]))  # type: ignore[attr-defined]
    if function + 8 < len(row_hashes) and cython.compiled:
        row = slots[2 * slot_of(row_hashes[function + 8], mask)]
        if row:
            row = functions.first_row[row - 1]
            prefetch(cython.address(functions.row_start[row]))  # type: ignore[attr-defined]
            prefetch(cython.address(functions.row_rule[row]))  # type: ignore[attr-defined]
    return 0


@cython.boundscheck(False)
def find_same_before(functions: Functions, row_hashes: Column, slots: Column, function: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return an earlier function with the same kind and rows; if `slots` has none, add this function, and return it."""
    mask: cython.Py_ssize_t = (len(slots) >> 1) - 1
    row_hash: cython.longlong = row_hashes[function]
    slot: cython.Py_ssize_t = slot_of(row_hash, mask)
    other: cython.Py_ssize_t
    for _ in range(32):  # slots at most, so that hashes that collide do not take quadratic time
        if slots[2 * slot] == 0:
            slots[2 * slot] = function + 1
            slots[2 * slot + 1] = row_hash
            break
        other = slots[2 * slot] - 1
        if (
            slots[2 * slot + 1] == row_hash
            and functions.kind[other] == functions.kind[function]
            and have_same_rows(functions, function, other)
        ):
            return other
        slot = (slot + 1) & mask
    return function


@cython.boundscheck(False)
def have_same_rows(functions: Functions, function: cython.Py_ssize_t, other: cython.Py_ssize_t) -> cython.bint:
    """True if both functions have the same rows."""
    first_row: cython.Py_ssize_t = functions.first_row[function]
    rows: cython.Py_ssize_t = functions.first_row[function + 1] - first_row
    other_first_row: cython.Py_ssize_t = functions.first_row[other]
    i: cython.Py_ssize_t
    if functions.first_row[other + 1] - other_first_row != rows:
        return False
    for i in range(rows):
        if functions.row_start[other_first_row + i] != functions.row_start[first_row + i]:
            return False
        if functions.row_rule[other_first_row + i] != functions.row_rule[first_row + i]:
            return False
    return True


@cython.boundscheck(False)
def measure_block(
    functions: Functions, words: Words, fields: Fields, blocks: Blocks, function: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Fill in the FRE type and size of the function's own block; return the first row that its FDE type cannot express, or -1."""
    first: cython.Py_ssize_t = functions.first_row[function]
    end: cython.Py_ssize_t = functions.first_row[function + 1]
    fde_type: cython.Py_ssize_t = words.kind_bytes[functions.kind[function] * 3 + 1]
    fre_type: cython.int = 0
    row: cython.Py_ssize_t
    rule: cython.Py_ssize_t
    size: cython.longlong
    if first < end:
        fre_type = fre_type_for(functions.row_start[end - 1])
    size = fields.attribute_size + (end - first) * start_width(fre_type)
    for row in range(first, end):
        rule = 2 * functions.row_rule[row] + fde_type
        if words.rule_at[rule + 1] == words.rule_at[rule]:
            return row
        size += words.rule_at[rule + 1] - words.rule_at[rule]
    blocks.fre_type[function] = fre_type
    blocks.size[function] = size
    return -1


def slot_of(row_hash: cython.longlong, mask: cython.longlong) -> cython.longlong:
    """Return the slot of `slots` where the search for a hash begins. `mask`: the number of slots, a power of two, minus 1."""
    return ((row_hash * 0x45D9F3B) >> 24) & mask


def put_attribute(
    out: OutputBytes, at: cython.Py_ssize_t, function: cython.Py_ssize_t, functions: Functions, words: Words, fields: Fields,
    blocks: Blocks,
) -> cython.int:  # fmt: skip
    """Write a function's number of rows and its kind, if the version has these fields. `at`: the base of their offsets."""
    kind_at: cython.Py_ssize_t = functions.kind[function] * 3
    out.put(at + fields.num_fres_at, functions.first_row[function + 1] - functions.first_row[function], fields.num_fres_width)
    out.data[at + fields.info_at] = words.kind_bytes[kind_at] | blocks.fre_type[function]
    if fields.info2_at >= 0:
        out.data[at + fields.info2_at] = words.kind_bytes[kind_at + 1]
    if fields.rep_size_at >= 0:
        out.data[at + fields.rep_size_at] = words.kind_bytes[kind_at + 2]
    return 0


def write_blocks(
    functions: Functions, words: Words, fields: Fields, blocks: Blocks, out: OutputBytes, blocks_at: cython.Py_ssize_t
) -> None:
    """Write all blocks of rows, the first at `blocks_at`."""
    function: cython.Py_ssize_t
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    pos: cython.Py_ssize_t
    width: cython.Py_ssize_t
    rule: cython.Py_ssize_t
    fde_type: cython.Py_ssize_t
    for function in range(len(functions.kind)):
        if blocks.owner[function] != function:
            continue
        pos = blocks_at + blocks.at[function]
        if fields.attribute_in_block:
            put_attribute(out, pos, function, functions, words, fields, blocks)
        pos += fields.attribute_size
        width = start_width(blocks.fre_type[function])
        fde_type = words.kind_bytes[functions.kind[function] * 3 + 1]
        for row in range(functions.first_row[function], functions.first_row[function + 1]):
            if width == 1:
                out.data[pos] = functions.row_start[row] & 0xFF
                pos += 1
            else:
                pos = out.put(pos, functions.row_start[row], width)
            rule = 2 * functions.row_rule[row] + fde_type
            for i in range(words.rule_at[rule], words.rule_at[rule + 1]):
                out.data[pos] = words.rule_bytes[i]
                pos += 1


def write_index(
    functions: Functions, words: Words, fields: Fields, blocks: Blocks, out: OutputBytes, index_at: cython.Py_ssize_t,
    origin: cython.ulonglong,
) -> None:  # fmt: skip
    """Write the function index. Each function's start is relative to its own field; `origin` is the address of the first field."""
    function: cython.Py_ssize_t
    entry: cython.Py_ssize_t
    distance: cython.longlong
    for function in range(len(functions.start)):
        entry = index_at + function * fields.index_size
        distance = functions.start[function] - (origin + function * fields.index_size)
        out.put(entry, distance, fields.start_width)
        out.put(entry + fields.size_at, functions.size[function], 4)
        out.put(entry + fields.fre_offset_at, blocks.at[function], 4)
        if not fields.attribute_in_block:
            put_attribute(out, entry, function, functions, words, fields, blocks)
