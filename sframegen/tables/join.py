"""Chooses what code each FDE is of, so that the section is smaller: pieces of functions, and pieces side by side. Compiled.

An FDE is an address range, and nobody asks for its name. Two functions with the same prologue, the same epilogue and bodies of
different lengths have different rows. Cut where the body ends, they have both halves in common: the length of a half's last row
is only in the index entry. A cut costs an index entry. Ranges side by side can share an FDE: that saves an index entry and an
attribute, and a row where one begins as the one before it ends; but rows after wider starts cost more, and a range whose rows are
shared with others costs nothing but its index entry. A dynamic program over the pieces by address weighs all this.
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


@cython.locals(row_rule="const unsigned int[::1]", wanted="const unsigned char[::1]", rows="unsigned int[::1]")
def of_rules(row_rule: Column, wanted: Bytes, rows: Column) -> int:
    """Fills the numbers of all rows whose rule is `wanted`, as far as there is room; returns how many there are."""
    row: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    for row in range(len(row_rule)):
        if wanted[row_rule[row]]:
            if count < len(rows):
                rows[count] = row
            count += 1
    return count


@cython.locals(
    kind_bytes="const unsigned char[::1]",
    symbols="const unsigned long long[::1]",
    unsaid="const unsigned long long[::1]",
    may_follow="unsigned char[::1]",
)
def followers(
    functions: Functions,
    kind_bytes: Bytes,
    areas: Areas,
    symbols: Column,
    unsaid: Column,
    max_gap: cython.ulonglong,
    may_follow: bytearray,
) -> None:
    """Marks each function that may share an FDE with the one before it.

    Both are of one kind, not of PC type MASK; between them are at most `max_gap` bytes, all of which the area's states accept as
    padding, without any of the places that `symbols` and `unsaid` name. Functions and these ascend.
    """
    function: cython.Py_ssize_t
    area: cython.Py_ssize_t = 0
    symbol: cython.Py_ssize_t = 0
    left: cython.Py_ssize_t = 0
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
        while symbol < len(symbols) and symbols[symbol] < low:
            symbol += 1
        while left < len(unsaid) and unsaid[left] < low:
            left += 1
        if (symbol < len(symbols) and symbols[symbol] < high) or (left < len(unsaid) and unsaid[left] < high):
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


@cython.locals(sharers="unsigned int[::1]", begins="unsigned char[::1]")
def cut(
    functions: Functions,
    words: Words,
    blocks: Blocks,
    sharers: Column,
    begins: bytearray,
    worth: cython.ulonglong,
    body: cython.longlong,
) -> int:
    """Marks the rows with which pieces begin; returns the number of pieces.

    A function is cut after each row that holds for at least `body` bytes of code, if its share of the bytes of its block is at
    least `worth`, and it is not of PC type MASK. `sharers`: zeros; how many functions have the block that each one owns.
    """
    count: cython.Py_ssize_t = len(functions.start)
    function: cython.Py_ssize_t
    row: cython.Py_ssize_t
    for function in range(len(functions.start)):
        sharers[blocks.owner[function]] += 1
    for function in range(len(functions.start)):
        begins[functions.first_row[function]] = 1
        if blocks.size[function] < worth * sharers[blocks.owner[function]]:
            continue
        if words.kind_bytes[3 * functions.kind[function]] & 0x10:  # PC type MASK
            continue
        for row in range(functions.first_row[function] + 1, functions.first_row[function + 1]):
            if functions.row_start[row] - functions.row_start[row - 1] >= body:
                begins[row] = 1
                count += 1
    return count


class Groups:
    """Which pieces share an FDE, an entry for each piece, and room to work it out.

    `may_follow`: nothing but padding is between it and the one before it, and their kinds are equal and of PC type INC.
    `function`: the first piece of its function. `whole`: for the last one, the function's share of the bytes of its block.
    first[p + 1]: the first piece of the group that ends with p. `head`: it begins a group. `alone`: it is a group, and so
    counts among those that share its rows. `sharers` (of the block that it owns) and `best` (the smallest section of the
    pieces before it) are room.
    """

    def __init__(self, count: int) -> None:
        self.may_follow = bytearray(count)
        self.function: Column = zeros("I", count)
        self.whole: Column = zeros("Q", count)
        self.first: Column = zeros("I", count + 1)
        self.head = bytearray(count)
        self.alone = bytearray(b"\1" * count)
        self.sharers: Column = zeros("I", count)
        self.best: Column = zeros("Q", count + 1)


@cython.locals(may_follow="const unsigned char[::1]", sharers="const unsigned int[::1]", begins="const unsigned char[::1]")
def take_apart(
    functions: Functions, blocks: Blocks, may_follow: Bytes, sharers: Column, begins: Bytes, pieces: Functions, groups: Groups
) -> None:
    """Fills the pieces that `cut` marked, except their rules, which are the functions', and what `groups` says of them."""
    piece: cython.Py_ssize_t = 0
    first: cython.Py_ssize_t
    function: cython.Py_ssize_t
    row: cython.Py_ssize_t
    base: cython.longlong
    for function in range(len(functions.start)):
        first = piece
        base = 0
        for row in range(functions.first_row[function], functions.first_row[function + 1]):
            if begins[row]:
                if piece > first:
                    pieces.size[piece - 1] = functions.row_start[row] - base
                base = functions.row_start[row]
                pieces.start[piece] = functions.start[function] + base
                pieces.kind[piece] = functions.kind[function]
                pieces.first_row[piece] = row
                groups.may_follow[piece] = 1 if piece > first else may_follow[function]
                groups.function[piece] = first
                piece += 1
            pieces.row_start[row] = functions.row_start[row] - base
        pieces.size[piece - 1] = functions.size[function] - base
        groups.whole[piece - 1] = blocks.size[function] // sharers[blocks.owner[function]]
    pieces.first_row[piece] = len(pieces.row_start)


def group(
    pieces: Functions,
    words: Words,
    blocks: Blocks,
    groups: Groups,
    index_size: cython.ulonglong,
    attribute: cython.longlong,
    max_rows: cython.longlong,
    max_span: cython.ulonglong,
) -> int:
    """Fills groups.first so that the section of the pieces up to each is smallest; returns the number of groups.

    `index_size`, `attribute`: bytes of one. Groups have at most `max_rows` rows, and if they are of several functions, span at most
    `max_span` bytes of code; a whole function can be a group in any case. What `groups.alone` marks afterwards is not what it was
    while the groups were weighed: call this again.
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
    for last in range(len(pieces.start)):
        groups.sharers[last] = 0
    for last in range(len(pieces.start)):
        if groups.alone[last]:
            groups.sharers[blocks.owner[last]] += 1
    groups.best[0] = 0
    for last in range(len(pieces.start)):
        rows = groups.sharers[blocks.owner[last]]
        groups.best[last + 1] = groups.best[last] + index_size + blocks.size[last] // (rows if rows else 1)
        groups.first[last + 1] = last
        if groups.whole[last] and groups.function[last] < last:
            first = groups.function[last]
            cost = groups.best[first] + index_size + groups.whole[last]
            if cost <= groups.best[last + 1]:
                groups.best[last + 1] = cost
                groups.first[last + 1] = first
        fde_type = words.kind_bytes[pieces.kind[last] * 3 + 1]
        end = pieces.start[last] + pieces.size[last]
        last_row = pieces.start[last] + pieces.row_start[pieces.first_row[last + 1] - 1]
        rows = 0
        size = 0
        first = last
        while True:
            rows += pieces.first_row[first + 1] - pieces.first_row[first]
            if rows > max_rows:
                break
            size += blocks.size[first] - attribute
            size -= (pieces.first_row[first + 1] - pieces.first_row[first]) << blocks.fre_type[first]
            if first < groups.function[last] and end - pieces.start[first] > max_span:
                break
            if first < last:
                width = last_row - pieces.start[first]
                width = 1 if width < 0x100 else 2 if width < 0x10000 else 4
                cost = groups.best[first] + index_size + attribute + size + rows * width
                if cost < groups.best[last + 1]:
                    groups.best[last + 1] = cost
                    groups.first[last + 1] = first
            if first == 0 or not groups.may_follow[first]:
                break
            rule = pieces.first_row[first]
            if pieces.row_rule[rule - 1] == pieces.row_rule[rule]:  # the boundary row repeats the one before it
                rule = 2 * pieces.row_rule[rule] + fde_type
                size -= words.rule_at[rule + 1] - words.rule_at[rule]
                rows -= 1
            first -= 1
    return mark(groups)


@cython.cfunc
@cython.exceptval(-1)
def mark(groups: Groups) -> cython.Py_ssize_t:
    """Marks the pieces that begin a group, and those that are one; returns the number of groups."""
    count: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t = len(groups.head)
    piece: cython.Py_ssize_t
    for piece in range(end):
        groups.head[piece] = 0
        groups.alone[piece] = 0
    while end > 0:
        piece = groups.first[end]
        groups.head[piece] = 1
        groups.alone[piece] = 1 if piece == end - 1 else 0
        end = piece
        count += 1
    return count


def rebuild(pieces: Functions, groups: Groups, joined: Functions) -> int:
    """Fills the columns of the joined functions, which have room for as many as `groups.head` marks; returns the number of rows."""
    count: cython.Py_ssize_t = 0
    piece: cython.Py_ssize_t
    rows: cython.Py_ssize_t = 0
    row: cython.Py_ssize_t
    base: cython.ulonglong = 0
    for piece in range(len(pieces.start)):
        if groups.head[piece]:
            base = pieces.start[piece]
            joined.start[count] = base
            joined.kind[count] = pieces.kind[piece]
            joined.first_row[count] = rows
            count += 1
        joined.size[count - 1] = pieces.start[piece] + pieces.size[piece] - base
        for row in range(pieces.first_row[piece], pieces.first_row[piece + 1]):
            if rows > joined.first_row[count - 1] and joined.row_rule[rows - 1] == pieces.row_rule[row]:
                continue
            joined.row_start[rows] = pieces.start[piece] - base + pieces.row_start[row]
            joined.row_rule[rows] = pieces.row_rule[row]
            rows += 1
    joined.first_row[count] = rows
    return rows
