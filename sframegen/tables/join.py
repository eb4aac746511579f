"""Joins neighbouring functions into one FDE where that makes the section smaller. Compiled.

An FDE is an address range, and nobody asks for its name: functions side by side can share one. Each saves its index entry and its
attribute, and a row where it begins as the one before it ends; but rows after wider starts cost more, and a function whose rows
are shared with others costs nothing but its index entry. A dynamic program over the functions by address weighs the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi.columns import zeros

try:
    import cython
except ImportError:
    from cfi import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from cfi.columns import Bytes, Column
    from sframegen.elf.columns import Areas
    from sframegen.format.columns import Blocks, Functions, Words

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


@cython.locals(kind_bytes="const unsigned char[::1]", places="const unsigned long long[::1]", may_follow="unsigned char[::1]")
def followers(
    functions: Functions, kind_bytes: Bytes, areas: Areas, places: Column, max_gap: cython.ulonglong, may_follow: bytearray
) -> None:
    """Marks each function that may share an FDE with the one before it.

    Both are of one kind, not of PC type MASK; between them are at most `max_gap` bytes, all of which the area's states accept as
    padding, without any of the `places`, which symbols name. Functions and places ascend.
    """
    function: cython.Py_ssize_t
    area: cython.Py_ssize_t = 0
    place: cython.Py_ssize_t = 0
    pos: cython.Py_ssize_t
    state: cython.Py_ssize_t
    low: cython.ulonglong
    high: cython.ulonglong
    for function in range(1, len(functions.start)):
        low = functions.start[function - 1] + functions.size[function - 1]
        high = functions.start[function]
        if functions.kind[function] != functions.kind[function - 1] or high - low > max_gap:
            continue
        if kind_bytes[3 * functions.kind[function]] & 0x10:  # PC type MASK
            continue
        while place < len(places) and places[place] < low:
            place += 1
        if place < len(places) and places[place] < high:
            continue
        while area < len(areas.end) and areas.end[area] <= functions.start[function - 1]:
            area += 1
        if area == len(areas.end) or high >= areas.end[area]:
            continue
        state = 0
        pos = areas.offset[area] + (low - areas.start[area])
        while low < high and state != 0xFFFF:
            state = areas.padding[(state << 8) | areas.data[pos]]
            pos += 1
            low += 1
        if state == 0:
            may_follow[function] = 1


class Groups:
    """Which neighbours share an FDE, an entry for each function, and room to work it out.

    `may_follow`: nothing but padding is between it and the one before it, and their kinds are equal and of PC type INC.
    first[f + 1]: the first function of the group that ends with f. `head`: it begins a group. `alone`: it is a group, and so
    counts among those that share its rows. `sharers` (of the block that it owns) and `best` (the smallest section of the
    functions before it) are room.
    """

    def __init__(self, may_follow: Bytes) -> None:
        count = len(may_follow)
        self.may_follow = may_follow
        self.first: Column = zeros("I", count + 1)
        self.head = bytearray(count)
        self.alone = bytearray(b"\1" * count)
        self.sharers: Column = zeros("I", count)
        self.best: Column = zeros("Q", count + 1)


def group(
    functions: Functions,
    words: Words,
    blocks: Blocks,
    groups: Groups,
    index_size: cython.ulonglong,
    attribute: cython.longlong,
    max_rows: cython.longlong,
    max_span: cython.ulonglong,
) -> int:
    """Fills groups.first so that the section of the functions up to each is smallest; returns the number of groups.

    `index_size`, `attribute`: bytes of one. Groups have at most `max_rows` rows and span at most `max_span` bytes of code. What
    `groups.alone` marks afterwards is not what it was while the groups were weighed: call this again.
    """
    last: cython.Py_ssize_t
    first: cython.Py_ssize_t
    rule: cython.Py_ssize_t
    fde_type: cython.longlong
    rows: cython.longlong
    size: cython.longlong
    width: cython.longlong
    cost: cython.ulonglong
    end: cython.ulonglong
    last_row: cython.ulonglong
    for last in range(len(functions.start)):
        groups.sharers[last] = 0
    for last in range(len(functions.start)):
        if groups.alone[last]:
            groups.sharers[blocks.owner[last]] += 1
    groups.best[0] = 0
    for last in range(len(functions.start)):
        rows = groups.sharers[blocks.owner[last]]
        groups.best[last + 1] = groups.best[last] + index_size + blocks.size[last] // (rows if rows else 1)
        groups.first[last + 1] = last
        fde_type = words.kind_bytes[functions.kind[last] * 3 + 1]
        end = functions.start[last] + functions.size[last]
        last_row = functions.start[last] + functions.row_start[functions.first_row[last + 1] - 1]
        rows = 0
        size = 0
        first = last
        while True:
            rows += functions.first_row[first + 1] - functions.first_row[first]
            if rows > max_rows:
                break
            size += blocks.size[first] - attribute
            size -= (functions.first_row[first + 1] - functions.first_row[first]) << blocks.fre_type[first]
            if end - functions.start[first] > max_span:
                break
            if first < last:
                width = last_row - functions.start[first]
                width = 1 if width < 0x100 else 2 if width < 0x10000 else 4
                cost = groups.best[first] + index_size + attribute + size + rows * width
                if cost < groups.best[last + 1]:
                    groups.best[last + 1] = cost
                    groups.first[last + 1] = first
            if first == 0 or not groups.may_follow[first]:
                break
            rule = functions.first_row[first]
            if functions.row_rule[rule - 1] == functions.row_rule[rule]:  # the boundary row repeats the one before it
                rule = 2 * functions.row_rule[rule] + fde_type
                size -= words.rule_at[rule + 1] - words.rule_at[rule]
                rows -= 1
            first -= 1
    return mark(groups)


@cython.cfunc
@cython.exceptval(-1)
def mark(groups: Groups) -> cython.Py_ssize_t:
    """Marks the functions that begin a group, and those that are one; returns the number of groups."""
    count: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t = len(groups.head)
    function: cython.Py_ssize_t
    for function in range(end):
        groups.head[function] = 0
        groups.alone[function] = 0
    while end > 0:
        function = groups.first[end]
        groups.head[function] = 1
        groups.alone[function] = 1 if function == end - 1 else 0
        end = function
        count += 1
    return count


def rebuild(functions: Functions, groups: Groups, joined: Functions) -> int:
    """Fills the columns of the joined functions, which have room for as many as `groups.head` marks; returns the number of rows."""
    count: cython.Py_ssize_t = 0
    function: cython.Py_ssize_t
    rows: cython.Py_ssize_t = 0
    row: cython.Py_ssize_t
    base: cython.ulonglong = 0
    for function in range(len(functions.start)):
        if groups.head[function]:
            base = functions.start[function]
            joined.start[count] = base
            joined.kind[count] = functions.kind[function]
            joined.first_row[count] = rows
            count += 1
        joined.size[count - 1] = functions.start[function] + functions.size[function] - base
        for row in range(functions.first_row[function], functions.first_row[function + 1]):
            if rows > joined.first_row[count - 1] and joined.row_rule[rows - 1] == functions.row_rule[row]:
                continue
            joined.row_start[rows] = functions.start[function] - base + functions.row_start[row]
            joined.row_rule[rows] = functions.row_rule[row]
            rows += 1
    joined.first_row[count] = rows
    return rows
