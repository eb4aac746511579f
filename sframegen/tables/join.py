"""Chooses the code that each FDE covers, so that the section gets smaller: cuts functions into pieces, joins neighbours. Compiled.

An FDE need not be a function: unwinders look up its address range only. Two functions with the same prologue, the same epilogue
and bodies of different lengths have different rows. If both are cut where the body ends, their halves have equal rows, because
the length of a half's last row is only in the index entry. A cut costs an index entry. Adjacent ranges can share an FDE. That
saves an index entry and an attribute, and a row if one range begins with the rule that the previous one ends with; but wide row
starts cost more. A range, or a run of adjacent pieces, whose rows are repeated elsewhere costs only its index entry. A dynamic
program over the pieces by address weighs these costs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.base.columns import make_columns

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if not cython.compiled:
    from sframegen.base.cython_shadow import prefetch
    from sframegen.format.fre_bytes import fre_type_for, is_masked, start_width
if TYPE_CHECKING:
    from sframegen.base.columns import Bytes, Column
    from sframegen.elf.columns import Areas
    from sframegen.format.columns import Blocks, Functions, Words

COMPILED: bool = cython.compiled


@cython.locals(
    kind_bytes="const unsigned char[::1]",
    symbols="const unsigned long long[::1]",
    uncovered="const unsigned long long[::1]",
    may_follow="unsigned char[::1]",
)
def mark_followers(
    functions: Functions,
    kind_bytes: Bytes,
    areas: Areas,
    symbols: Column,
    uncovered: Column,
    max_gap: cython.ulonglong,
    may_follow: bytearray,
) -> None:
    """Mark in `may_follow` each function that may share an FDE with the previous one.

    Both are of one kind, and not of PC type MASK. Between them are at most `max_gap` bytes, all padding by the area's patterns, and
    no address in `symbols` or `uncovered`. Functions, `symbols` and `uncovered` ascend.
    """
    function: cython.Py_ssize_t
    ahead: cython.Py_ssize_t
    area: cython.Py_ssize_t = 0
    symbol: cython.Py_ssize_t = 0
    left: cython.Py_ssize_t = 0
    low: cython.ulonglong
    high: cython.ulonglong
    for function in range(1, len(functions.start)):
        ahead = function + 16
        if cython.compiled and ahead < len(functions.start):
            areas.prefetch_byte(area, functions.start[ahead] - 1)
        low = functions.start[function - 1] + functions.size[function - 1]
        high = functions.start[function]
        if functions.kind[function] != functions.kind[function - 1] or high - low > max_gap:
            continue
        if is_masked(kind_bytes[3 * functions.kind[function]]):
            continue
        while symbol < len(symbols) and symbols[symbol] < low:
            symbol += 1
        while left < len(uncovered) and uncovered[left] < low:
            left += 1
        if (symbol < len(symbols) and symbols[symbol] < high) or (left < len(uncovered) and uncovered[left] < high):
            continue
        while area < len(areas.end) and areas.end[area] <= functions.start[function - 1]:
            area += 1
        if area == len(areas.end) or high >= areas.end[area]:
            continue
        if areas.padding_end(area, low, high, True) == high:
            may_follow[function] = 1


@cython.boundscheck(False)
@cython.locals(sharers="unsigned int[::1]", begins="unsigned char[::1]")
def mark_pieces(
    functions: Functions,
    words: Words,
    blocks: Blocks,
    sharers: Column,
    begins: Column,
    worth: cython.ulonglong,
    body: cython.longlong,
) -> int:
    """Mark in `begins` the first row of each piece; return the number of pieces.

    A function is cut after each row that applies to at least `body` bytes of code, unless its share of the bytes of its block is
    less than `worth`, or it is of PC type MASK. `sharers`: zeros; gets the number of functions that use each owner's block.
    """
    count: cython.Py_ssize_t = len(functions.start)
    function: cython.Py_ssize_t
    row: cython.Py_ssize_t
    for function in range(len(functions.start)):
        sharers[blocks.owner[function]] += 1
    for function in range(len(functions.start)):
        if functions.first_row[function] == functions.first_row[function + 1]:
            raise IndexError(function)
        begins[functions.first_row[function]] = 1
        if blocks.size[function] < worth * sharers[blocks.owner[function]]:
            continue
        if is_masked(words.kind_bytes[3 * functions.kind[function]]):
            continue
        for row in range(functions.first_row[function] + 1, functions.first_row[function + 1]):
            if functions.row_start[row] - functions.row_start[row - 1] >= body:
                begins[row] = 1
                count += 1
    return count


class Groups:
    """The groups of pieces that share an FDE: columns with an entry for each piece, and scratch columns.

    `may_follow`: 1 if only padding separates the piece from the previous one, and both have one kind, of PC type INC.
    `function`: the first piece of its function. `like`: a piece of an earlier function with the same rows, or itself. `whole`: for
    the last of several pieces, the function's share of the bytes of its block. first[p + 1]: the first piece of the group that
    ends with p. `head`: 1 if it begins a group. `several`: 1 if its group has other pieces; it then does not count as a sharer.
    `joined_size`: bytes of its rows without their starts. `repeated`: bytes of its first row if that repeats the previous piece's
    last row, else 0. Scratch: `sharers` (of the block that it owns), `best` (the smallest size of the section before the piece).

    `run` has an entry for each last piece of a run of two pieces, then of three, up to `longest`: the last piece of the first run
    with the same rows at the same distances, or itself. `chosen`: how many runs equal to it are groups.
    """

    def __init__(self, count: int, longest: int) -> None:
        self.may_follow, self.head, self.several = make_columns("BBB", count)
        self.function, self.like, self.sharers, self.joined_size, self.repeated = make_columns("IIIII", count)
        self.first, self.whole, self.best = make_columns("IQQ", count + 1)
        self.run, self.chosen = make_columns("II", count * (longest - 1))


@cython.boundscheck(False)
@cython.locals(
    may_follow="const unsigned char[::1]",
    sharers="const unsigned int[::1]",
    begins="const unsigned char[::1]",
    piece_of="unsigned int[::1]",
)
def fill_pieces(
    functions: Functions,
    blocks: Blocks,
    may_follow: Bytes,
    sharers: Column,
    begins: Column,
    piece_of: Column,
    pieces: Functions,
    groups: Groups,
) -> None:
    """Fill the columns of the pieces that `mark_pieces` marked, and their entries in `groups`. The column of rules is not filled.

    `piece_of`: scratch, the first piece of each function. Functions with the same block are cut at the same offsets.
    """
    piece: cython.Py_ssize_t = 0
    first: cython.Py_ssize_t
    alike: cython.Py_ssize_t  # the piece of the block's owner that is like this one
    function: cython.Py_ssize_t
    ahead: cython.Py_ssize_t
    row: cython.Py_ssize_t
    base: cython.longlong
    for function in range(len(functions.start)):
        ahead = function + 16
        if ahead < len(functions.start) and cython.compiled:
            prefetch(cython.address(piece_of[blocks.owner[ahead]]))  # type: ignore[attr-defined]
            prefetch(cython.address(sharers[blocks.owner[ahead]]))  # type: ignore[attr-defined]
        first = piece
        piece_of[function] = piece
        alike = piece_of[blocks.owner[function]]
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
                groups.like[piece] = alike
                alike += 1
                piece += 1
            pieces.row_start[row] = functions.row_start[row] - base
        pieces.size[piece - 1] = functions.size[function] - base
        if piece - first > 1:
            groups.whole[piece - 1] = blocks.size[function] // sharers[blocks.owner[function]]
    pieces.first_row[piece] = len(pieces.row_start)


@cython.boundscheck(False)
@cython.locals(start="const unsigned long long[::1]", owner="const unsigned int[::1]", seen="unsigned int[::1]")
def find_runs(pieces: Functions, blocks: Blocks, groups: Groups, seen: Column) -> None:
    """Fill groups.run, and groups.chosen as if each run were a group. `seen`: a scratch column whose size is a power of two.

    A run can only repeat if the same run without its last piece repeats, so most pieces are not looked up.
    """
    start = pieces.start
    owner = blocks.owner
    count: cython.Py_ssize_t = len(start)
    mask: cython.longlong = len(seen) - 1
    base: cython.Py_ssize_t  # index of the entries for runs of one length
    last: cython.Py_ssize_t
    other: cython.Py_ssize_t
    side_by_side: cython.Py_ssize_t
    left: cython.Py_ssize_t
    slot: cython.longlong
    for last in range(count):
        groups.sharers[owner[last]] += 1
    for base in range(0, len(groups.run), count):
        side_by_side = 0
        for slot in range(len(seen)):
            seen[slot] = 0
        for last in range(count):
            groups.run[base + last] = last
            groups.chosen[base + last] += 1
            side_by_side = side_by_side + 1 if groups.may_follow[last] else 0
            if side_by_side * count <= base:
                continue
            left = owner[last - 1] if base == 0 else groups.run[base - count + last - 1]
            if (groups.sharers[left] if base == 0 else groups.chosen[base - count + left]) < 2:
                continue
            slot = (((left * 0x10193 + owner[last]) * 0x10193 + (start[last] - start[last - 1])) * 0x45D9F3B >> 20) & mask
            for _ in range(32):
                if seen[slot] == 0:
                    seen[slot] = last + 1
                    break
                other = seen[slot] - 1
                if (
                    owner[other] == owner[last]
                    and start[other] - start[other - 1] == start[last] - start[last - 1]
                    and (owner[other - 1] if base == 0 else groups.run[base - count + other - 1]) == left
                ):
                    groups.run[base + last] = other
                    groups.chosen[base + last] -= 1
                    groups.chosen[base + other] += 1
                    break
                slot = (slot + 1) & mask


@cython.boundscheck(False)
def choose_groups(
    pieces: Functions,
    words: Words,
    blocks: Blocks,
    groups: Groups,
    index_size: cython.ulonglong,
    attribute: cython.longlong,
    max_rows: cython.longlong,
    max_span: cython.ulonglong,
) -> int:
    """Fill groups.first so that the section up to each piece is as small as possible; return the number of groups.

    `index_size`, `attribute`: bytes of an index entry and an attribute. Groups have at most `max_rows` rows. A group of several
    functions spans at most `max_span` bytes of code; a whole function may always be a group. This changes `groups.several` and
    `groups.chosen`, which the costs depend on, so that another call can find a better result.
    """
    last: cython.Py_ssize_t
    rule: cython.Py_ssize_t
    row: cython.Py_ssize_t
    rows: cython.longlong
    own: cython.Py_ssize_t  # the first piece of the function
    size: cython.ulonglong
    for last in range(len(pieces.start)):
        groups.sharers[last] = 0
    for last in range(len(pieces.start)):
        if not groups.several[last]:
            groups.sharers[blocks.owner[last]] += 1
    groups.best[0] = 0
    for last in range(len(pieces.start)):
        if last + 16 < len(pieces.start) and cython.compiled:
            prefetch(cython.address(groups.sharers[blocks.owner[last + 16]]))  # type: ignore[attr-defined]
        size = blocks.size[last]
        row = pieces.first_row[last]
        rows = pieces.first_row[last + 1] - row
        groups.joined_size[last] = size - attribute - rows * start_width(blocks.fre_type[last])
        groups.repeated[last] = 0
        if last > 0 and groups.may_follow[last] and pieces.row_rule[row - 1] == pieces.row_rule[row]:
            rule = 2 * pieces.row_rule[row] + words.kind_bytes[pieces.kind[last] * 3 + 1]
            groups.repeated[last] = words.rule_at[rule + 1] - words.rule_at[rule]
        if groups.sharers[blocks.owner[last]] > 1:
            size = size // groups.sharers[blocks.owner[last]]
        groups.best[last + 1] = groups.best[last] + index_size + size
        groups.first[last + 1] = last
        own = groups.function[last]
        size = groups.best[own] + index_size + groups.whole[last]
        if groups.whole[last] and size <= groups.best[last + 1]:
            groups.best[last + 1] = size
            groups.first[last + 1] = own
        weigh_groups(pieces, groups, last, index_size, attribute, max_rows, max_span)
    return mark_groups(groups)


@cython.boundscheck(False)
@cython.cfunc
@cython.exceptval(-1)
def weigh_groups(
    pieces: Functions,
    groups: Groups,
    last: cython.Py_ssize_t,
    index_size: cython.ulonglong,
    attribute: cython.longlong,
    max_rows: cython.longlong,
    max_span: cython.ulonglong,
) -> cython.int:
    """Compute the costs of all groups of several pieces that end with piece `last`, and keep the one with the smallest section."""
    own: cython.Py_ssize_t = groups.function[last]
    end: cython.ulonglong = pieces.start[last] + pieces.size[last]
    last_row: cython.ulonglong = pieces.start[last] + pieces.row_start[pieces.first_row[last + 1] - 1]
    smallest: cython.ulonglong = groups.best[last + 1]
    rows: cython.longlong = 0
    size: cython.longlong = attribute
    first: cython.Py_ssize_t = last
    run: cython.Py_ssize_t
    cost: cython.ulonglong
    while True:
        rows += pieces.first_row[first + 1] - pieces.first_row[first]
        if rows > max_rows:
            break
        size += groups.joined_size[first]
        if first < own and end - pieces.start[first] > max_span:
            break
        if first < last:
            cost = size + rows * start_width(fre_type_for(last_row - pieces.start[first]))
            run = (last - first - 1) * len(pieces.start) + last
            if run < len(groups.run):
                run += groups.run[run] - last
                if groups.chosen[run] > 1:
                    cost = cost // groups.chosen[run]
            cost += groups.best[first] + index_size
            if cost < smallest:
                smallest = cost
                groups.first[last + 1] = first
        if first == 0 or not groups.may_follow[first]:
            break
        size -= groups.repeated[first]
        rows -= groups.repeated[first] != 0
        first -= 1
    groups.best[last + 1] = smallest
    return 0


@cython.boundscheck(False)
@cython.cfunc
@cython.exceptval(-1)
def mark_groups(groups: Groups) -> cython.Py_ssize_t:
    """Mark the pieces that begin a group, and those that share their group; return the number of groups."""
    count: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t = len(groups.head)
    piece: cython.Py_ssize_t
    run: cython.Py_ssize_t
    for piece in range(end):
        groups.head[piece] = 0
        groups.several[piece] = 1
    for run in range(len(groups.chosen)):
        groups.chosen[run] = 0
    while end > 0:
        piece = groups.first[end]
        groups.head[piece] = 1
        run = (end - piece - 2) * len(groups.head) + end - 1
        if piece == end - 1:
            groups.several[piece] = 0
        elif run < len(groups.run):
            groups.chosen[run - (end - 1) + groups.run[run]] += 1
        end = piece
        count += 1
    return count


@cython.boundscheck(False)
@cython.locals(
    like="unsigned int[::1]",
    row_start="const unsigned int[::1]",
    row_rule="const unsigned int[::1]",
    new_start="unsigned int[::1]",
    new_rule="unsigned int[::1]",
)
def fill_joined(pieces: Functions, blocks: Blocks, groups: Groups, joined: Functions, like: Column) -> int:
    """Fill the columns of the joined functions, one for each piece that `groups.head` marks; return the number of rows.

    `blocks`: those of the pieces. `like` gets an earlier joined function whose pieces have the same rows, or the function itself.
    Overwrites groups.first (the number of the joined function that begins with a piece) and groups.sharers (for each owner of rows,
    1 + the first such piece).
    """
    row_start = pieces.row_start
    row_rule = pieces.row_rule
    new_start = joined.row_start
    new_rule = joined.row_rule
    count: cython.Py_ssize_t = 0
    piece: cython.Py_ssize_t
    end: cython.Py_ssize_t = 0
    rows: cython.Py_ssize_t = 0
    first: cython.Py_ssize_t
    row: cython.Py_ssize_t
    other: cython.Py_ssize_t
    same: cython.Py_ssize_t
    moved: cython.longlong
    base: cython.ulonglong
    for piece in range(len(pieces.start)):
        groups.sharers[piece] = 0
    while end < len(pieces.start):
        piece = end
        if piece + 32 < len(pieces.start) and cython.compiled:
            prefetch(cython.address(groups.sharers[blocks.owner[piece + 32]]))  # type: ignore[attr-defined]
            other = groups.sharers[blocks.owner[piece + 16]]
            if other:
                prefetch(cython.address(blocks.owner[other - 1]))  # type: ignore[attr-defined]
                prefetch(cython.address(pieces.start[other - 1]))  # type: ignore[attr-defined]
        base = pieces.start[piece]
        joined.start[count] = base
        joined.kind[count] = pieces.kind[piece]
        joined.first_row[count] = rows
        first = rows
        while end == piece or (end < len(pieces.start) and not groups.head[end]):
            moved = pieces.start[end] - base
            for row in range(pieces.first_row[end], pieces.first_row[end + 1]):
                if rows > first and new_rule[rows - 1] == row_rule[row]:
                    continue
                new_start[rows] = moved + row_start[row]
                new_rule[rows] = row_rule[row]
                rows += 1
            end += 1
        joined.size[count] = pieces.start[end - 1] + pieces.size[end - 1] - base
        groups.first[piece] = count
        like[count] = count
        other = groups.sharers[blocks.owner[piece]]
        if other == 0:
            groups.sharers[blocks.owner[piece]] = piece + 1
        else:
            other -= 1
            same = 0
            while piece + same < end and blocks.owner[piece + same] == blocks.owner[other + same]:
                moved = pieces.start[other + same] - pieces.start[other]
                if pieces.start[piece + same] - base != moved or groups.head[piece + same] != groups.head[other + same]:
                    break
                same += 1
            if piece + same == end and groups.head[other + same]:
                like[count] = groups.first[other]
        count += 1
    joined.first_row[count] = rows
    return rows
