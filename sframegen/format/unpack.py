"""Bytes -> columns: walks the function index and the FREs of a section, every read fenced. Compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from cfi import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from collections.abc import Callable

    from cfi.columns import Bytes, Column

COMPILED: bool = cython.compiled

# What can be wrong, by the number that `functions` and `rows` return in fault[0]; fault[1] is the offset in the section.
FAULTS = (
    "",
    "function's FREs lie outside the FRE sub-section",
    "unknown FRE type",
    "unknown data word size",
    "FRE reaches past the end of the section",
    "row starts do not ascend from 0 within the function",
    "more FREs than bytes for them",
)


@cython.cfunc
@cython.exceptval(-1)
@cython.locals(data="const unsigned char[::1]")
def get(data: Bytes, pos: cython.Py_ssize_t, width: cython.Py_ssize_t, big: cython.bint) -> cython.longlong:
    """The unsigned number of `width` bytes (8: signed) at `pos`, which the caller has checked."""
    value: cython.longlong = 0
    byte: cython.longlong
    i: cython.Py_ssize_t
    for i in range(width):
        byte = data[pos + (i if big else width - 1 - i)]
        if i == 0 and width == 8 and byte >= 0x80:
            byte -= 0x100
        value = value * 256 + byte
    return value


@cython.locals(
    data="const unsigned char[::1]",
    start="long long[::1]",
    size="unsigned int[::1]",
    attribute="unsigned char[::1]",
    first_row="unsigned int[::1]",
    block_at="unsigned long long[::1]",
    fields="const long long[::1]",
    fault="long long[::1]",
)
def functions(
    data: Bytes,
    index_at: cython.Py_ssize_t,
    fres_at: cython.Py_ssize_t,
    fres_end: cython.Py_ssize_t,
    big: cython.bint,
    start: Column,
    size: Column,
    attribute: Column,
    first_row: Column,
    block_at: Column,
    fields: Column,
    fault: Column,
) -> None:
    """Reads the index (caller-checked to be inside `data`) and each function's attribute: 3 bytes a function in `attribute`.

    `start`: the stored offset. `block_at`: where the function's rows begin. `fields`: Layout.fields.
    """
    function: cython.Py_ssize_t
    entry: cython.Py_ssize_t
    at: cython.Py_ssize_t
    block: cython.longlong
    total: cython.longlong = 0
    distance: cython.longlong
    for function in range(len(start)):
        entry = index_at + function * fields[0]
        distance = get(data, entry, fields[1], big)
        if fields[1] == 4 and distance >> 31:
            distance -= fields[11]
        start[function] = distance
        size[function] = get(data, entry + fields[2], 4, big)
        block = fres_at + get(data, entry + fields[3], 4, big)
        if block + fields[5] > fres_end:
            fault[0] = 1
            fault[1] = entry
            return
        at = block if fields[4] else entry
        # Blocks can be shared by functions, so rows can be more than bytes; decode.py bounds them by what this counts.
        first_row[function] = total
        total += get(data, at + fields[6], fields[7], big)
        if total >> 32:
            fault[0] = 6
            fault[1] = entry
            return
        attribute[function * 3] = data[at + fields[8]]
        attribute[function * 3 + 1] = data[at + fields[9]] if fields[9] >= 0 else 0
        attribute[function * 3 + 2] = data[at + fields[10]] if fields[10] >= 0 else fields[12]
        block_at[function] = block + fields[5]
    first_row[len(start)] = total


@cython.locals(
    data="const unsigned char[::1]",
    size="const unsigned int[::1]",
    attribute="const unsigned char[::1]",
    first_row="const unsigned int[::1]",
    block_at="const unsigned long long[::1]",
    row_start="unsigned int[::1]",
    row_at="unsigned int[::1]",
    fault="long long[::1]",
)
def rows(
    data: Bytes,
    fres_end: cython.Py_ssize_t,
    big: cython.bint,
    size: Column,
    attribute: Column,
    first_row: Column,
    block_at: Column,
    row_start: Column,
    row_at: Column,
    fault: Column,
) -> None:
    """Reads every row's start, and where (offset in the section) its info byte stands."""
    function: cython.Py_ssize_t
    row: cython.Py_ssize_t
    pos: cython.Py_ssize_t
    width: cython.Py_ssize_t
    kind: cython.int
    info: cython.int
    value: cython.longlong
    before: cython.longlong
    limit: cython.longlong
    for function in range(len(size)):
        pos = block_at[function]
        kind = attribute[function * 3] & 0x0F
        if kind > 2:
            fault[0] = 2
            fault[1] = pos
            return
        width = 1 << kind
        before = -1
        # A row at the very end holds nowhere: GNU as 2.47 writes one for a directive behind a function's last instruction.
        limit = size[function]
        if attribute[function * 3] & 0x10:  # PC type MASK: offsets repeat with rep_size
            limit = attribute[function * 3 + 2]
        for row in range(first_row[function], first_row[function + 1]):
            if pos + width + 1 > fres_end:
                fault[0] = 4
                fault[1] = pos
                return
            value = get(data, pos, width, big)
            if value <= before or (before < 0 and value != 0) or value > limit:
                fault[0] = 5
                fault[1] = pos
                return
            before = value
            row_start[row] = value
            pos += width
            info = data[pos]
            if (info >> 5) & 3 == 3:
                fault[0] = 3
                fault[1] = pos
                return
            row_at[row] = pos
            pos += 1 + (((info >> 1) & 0x0F) << ((info >> 5) & 3))
            if pos > fres_end:
                fault[0] = 4
                fault[1] = pos
                return


@cython.locals(
    attribute="const unsigned char[::1]",
    first_row="const unsigned int[::1]",
    row_at="const unsigned int[::1]",
    kind="unsigned short[::1]",
    row_rule="unsigned int[::1]",
)
def names(
    data: bytes,
    attribute: Column,
    first_row: Column,
    row_at: Column,
    kinds: dict[int, int],
    rules: dict[bytes, int],
    new_kind: Callable[[int, int], int],
    new_rule: Callable[[int, int, bytes], int],
    kind: Column,
    row_rule: Column,
) -> None:
    """Numbers what the functions and the rows say. What `kinds` and `rules` do not know yet, `new_kind` and `new_rule` number.

    `kinds`: by info without the FRE type, info2, rep_size as one number; new_kind(that, function). `rules`: by the FDE type, as a
    byte, the row's info byte and its data words; new_rule(FDE type, offset of the info byte, the key).
    """
    function: cython.Py_ssize_t
    row: cython.Py_ssize_t
    at: cython.Py_ssize_t
    info: cython.int
    fde_type: cython.int
    key: cython.int
    raw: bytes
    types = [bytes([number]) for number in range(32)]
    for function in range(len(kind)):
        fde_type = attribute[function * 3 + 1] & 0x1F
        key = (attribute[function * 3] & 0xF0) << 16 | attribute[function * 3 + 1] << 8 | attribute[function * 3 + 2]
        number = kinds.get(key)
        if number is None:
            number = kinds[key] = new_kind(key, function)
        kind[function] = number
        prefix = types[fde_type]
        for row in range(first_row[function], first_row[function + 1]):
            at = row_at[row]
            info = data[at]
            raw = prefix + data[at : at + 1 + (((info >> 1) & 0x0F) << ((info >> 5) & 3))]
            number = rules.get(raw)
            if number is None:
                number = rules[raw] = new_rule(fde_type, at, raw)
            row_rule[row] = number
