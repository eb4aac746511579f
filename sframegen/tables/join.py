"""Joins neighbouring functions into one FDE where that makes the section smaller. Compiled.

An FDE is an address range, and nobody asks for its name: functions side by side can share one. Each saves its index entry and its
attribute, and a row where it begins as the one before it ends; but rows behind wider starts cost more, and a function whose rows
are shared with others costs nothing but its index entry. A dynamic program over the functions by address weighs the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from cfi import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from cfi.columns import Bytes, Column

COMPILED: bool = cython.compiled


@cython.locals(symbols="const unsigned char[::1]", values="unsigned long long[::1]")
def symbol_values(symbols: Bytes, big: cython.bint, values: Column) -> int:
    """Fills the values of all defined symbols of a symbol table (raw entries of 24 bytes) that name places; returns how many."""
    count: cython.Py_ssize_t = 0
    entry: cython.Py_ssize_t
    kind: cython.int
    i: cython.Py_ssize_t
    value: cython.ulonglong
    for entry in range(0, len(symbols) - 23, 24):
        kind = symbols[entry + 4] & 0x0F
        if kind == 3 or kind == 4 or (symbols[entry + 6] == 0 and symbols[entry + 7] == 0):  # section, file, undefined
            continue
        value = 0
        for i in range(8):
            value = value * 256 + symbols[entry + 8 + (i if big else 7 - i)]
        values[count] = value
        count += 1
    return count


@cython.locals(kind="const unsigned short[::1]", wanted="const unsigned char[::1]", functions="unsigned int[::1]")
def of_kinds(kind: Column, wanted: Bytes, functions: Column) -> int:
    """Fills the numbers of all functions whose kind is `wanted`, a flag for each; returns how many there are."""
    function: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    for function in range(len(kind)):
        if wanted[kind[function]]:
            functions[count] = function
            count += 1
    return count


@cython.locals(
    start="const unsigned long long[::1]",
    size="const unsigned int[::1]",
    kind="const unsigned short[::1]",
    kind_bytes="const unsigned char[::1]",
    data="const unsigned char[::1]",
    area_start="const unsigned long long[::1]",
    area_end="const unsigned long long[::1]",
    area_offset="const unsigned long long[::1]",
    states="const unsigned short[::1]",
    places="const unsigned long long[::1]",
    may_follow="unsigned char[::1]",
)
def followers(
    start: Column,
    size: Column,
    kind: Column,
    kind_bytes: Bytes,
    data: Bytes,
    area_start: Column,
    area_end: Column,
    area_offset: Column,
    states: Column,
    places: Column,
    max_gap: cython.ulonglong,
    may_follow: bytearray,
) -> None:
    """Marks each function that may share an FDE with the one before it.

    Both are of one kind, not of PC type MASK; between them are at most `max_gap` bytes, padding as far as `states` (see padding.py)
    takes them, without any of the `places`, which symbols name. Areas are executable: their bytes are at data[area_offset].
    Functions, areas and places ascend.
    """
    function: cython.Py_ssize_t
    area: cython.Py_ssize_t = 0
    place: cython.Py_ssize_t = 0
    pos: cython.Py_ssize_t
    state: cython.Py_ssize_t
    low: cython.ulonglong
    high: cython.ulonglong
    for function in range(1, len(start)):
        low = start[function - 1] + size[function - 1]
        high = start[function]
        if kind[function] != kind[function - 1] or kind_bytes[3 * kind[function]] & 0x10 or high - low > max_gap:
            continue
        while place < len(places) and places[place] < low:
            place += 1
        if place < len(places) and places[place] < high:
            continue
        while area < len(area_end) and area_end[area] <= start[function - 1]:
            area += 1
        if area == len(area_end) or high >= area_end[area]:
            continue
        state = 0
        pos = area_offset[area] + (low - area_start[area])
        while low < high and state != 0xFFFF:
            state = states[(state << 8) | data[pos]]
            pos += 1
            low += 1
        if state == 0:
            may_follow[function] = 1


@cython.locals(
    start="const unsigned long long[::1]",
    size="const unsigned int[::1]",
    kind="const unsigned short[::1]",
    first_row="const unsigned int[::1]",
    row_start="const unsigned int[::1]",
    row_rule="const unsigned int[::1]",
    rule_at="const unsigned int[::1]",
    kind_bytes="const unsigned char[::1]",
    may_follow="const unsigned char[::1]",
    fre_type="const unsigned char[::1]",
    block_size="const unsigned long long[::1]",
    owner="const unsigned int[::1]",
    alone="unsigned char[::1]",
    sharers="unsigned int[::1]",
    best="unsigned long long[::1]",
    group_first="unsigned int[::1]",
)
def group(
    start: Column,
    size: Column,
    kind: Column,
    first_row: Column,
    row_start: Column,
    row_rule: Column,
    rule_at: Column,
    kind_bytes: Bytes,
    may_follow: Bytes,
    index_size: cython.ulonglong,
    attribute: cython.longlong,
    fre_type: Bytes,
    block_size: Column,
    owner: Column,
    alone: bytearray,
    sharers: Column,
    max_rows: cython.longlong,
    max_span: cython.ulonglong,
    best: Column,
    group_first: Column,
) -> None:
    """Fills group_first[f + 1]: the first function of the group that ends with f, in the smallest section of functions up to f.

    `may_follow`[f]: nothing but padding is between function f - 1 and f, and their kinds are equal and of PC type INC.
    `index_size`, `attribute`: bytes of one. `fre_type`, `block_size` and `owner` as pack.py gives them; `alone`[f]: whether f
    counts among those that share its rows, which is what it is afterwards if this is called again. Groups have at most `max_rows`
    rows and span at most `max_span` bytes of code. `sharers` (one entry a function) and `best` (one more) are room to work. The
    rest as in pack.py.
    """
    functions: cython.Py_ssize_t = len(start)
    last: cython.Py_ssize_t
    first: cython.Py_ssize_t
    rule: cython.Py_ssize_t
    fde_type: cython.longlong
    rows: cython.longlong
    words: cython.longlong
    width: cython.longlong
    cost: cython.ulonglong
    end: cython.ulonglong
    last_row: cython.ulonglong
    for last in range(functions):
        sharers[last] = 0
    for last in range(functions):
        if alone[last]:
            sharers[owner[last]] += 1
    best[0] = 0
    for last in range(functions):
        rows = sharers[owner[last]]
        best[last + 1] = best[last] + index_size + block_size[last] // (rows if rows else 1)
        group_first[last + 1] = last
        fde_type = kind_bytes[kind[last] * 3 + 1]
        end = start[last] + size[last]
        last_row = start[last] + row_start[first_row[last + 1] - 1]
        rows = 0
        words = 0
        first = last
        while True:
            rows += first_row[first + 1] - first_row[first]
            if rows > max_rows:
                break
            words += block_size[first] - attribute - ((first_row[first + 1] - first_row[first]) << fre_type[first])
            if end - start[first] > max_span:
                break
            if first < last:
                width = 1 if last_row - start[first] < 0x100 else 2 if last_row - start[first] < 0x10000 else 4
                cost = best[first] + index_size + attribute + words + rows * width
                if cost < best[last + 1]:
                    best[last + 1] = cost
                    group_first[last + 1] = first
            if first == 0 or not may_follow[first]:
                break
            if row_rule[first_row[first] - 1] == row_rule[first_row[first]]:  # the boundary row repeats the one before it
                rule = 2 * row_rule[first_row[first]] + fde_type
                words -= rule_at[rule + 1] - rule_at[rule]
                rows -= 1
            first -= 1


@cython.locals(group_first="const unsigned int[::1]", heads="unsigned char[::1]", alone="unsigned char[::1]")
def heads_of(group_first: Column, heads: bytearray, alone: bytearray) -> int:
    """Marks the first functions of the groups, and those that are alone; returns the number of groups."""
    groups: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t = len(heads)
    function: cython.Py_ssize_t
    for function in range(end):
        heads[function] = 0
        alone[function] = 0
    while end > 0:
        function = group_first[end]
        heads[function] = 1
        alone[function] = 1 if function == end - 1 else 0
        end = function
        groups += 1
    return groups


@cython.locals(
    start="const unsigned long long[::1]",
    size="const unsigned int[::1]",
    kind="const unsigned short[::1]",
    first_row="const unsigned int[::1]",
    row_start="const unsigned int[::1]",
    row_rule="const unsigned int[::1]",
    heads="const unsigned char[::1]",
    new_start="unsigned long long[::1]",
    new_size="unsigned int[::1]",
    new_kind="unsigned short[::1]",
    new_first_row="unsigned int[::1]",
    new_row_start="unsigned int[::1]",
    new_row_rule="unsigned int[::1]",
)
def rebuild(
    start: Column,
    size: Column,
    kind: Column,
    first_row: Column,
    row_start: Column,
    row_rule: Column,
    heads: Bytes,
    new_start: Column,
    new_size: Column,
    new_kind: Column,
    new_first_row: Column,
    new_row_start: Column,
    new_row_rule: Column,
) -> int:
    """Fills the columns of the joined functions, of which `heads` marks the first ones; returns the number of rows."""
    functions: cython.Py_ssize_t = 0
    function: cython.Py_ssize_t
    rows: cython.Py_ssize_t = 0
    row: cython.Py_ssize_t
    base: cython.ulonglong = 0
    for function in range(len(start)):
        if heads[function]:
            base = start[function]
            new_start[functions] = base
            new_kind[functions] = kind[function]
            new_first_row[functions] = rows
            functions += 1
        new_size[functions - 1] = start[function] + size[function] - base
        for row in range(first_row[function], first_row[function + 1]):
            if rows > new_first_row[functions - 1] and new_row_rule[rows - 1] == row_rule[row]:
                continue
            new_row_start[rows] = start[function] - base + row_start[row]
            new_row_rule[rows] = row_rule[row]
            rows += 1
    new_first_row[functions] = rows
    return rows
