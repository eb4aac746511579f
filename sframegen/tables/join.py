"""Chooses the code that each FDE covers, so that the section gets smaller: cuts functions into pieces, joins neighbours. Compiled.

An FDE need not be a function: unwinders look up its address range only. Two functions with the same prologue, the same epilogue
and bodies of different lengths have different rows. If both are cut where the body ends, their halves have equal rows, because
the length of a half's last row is only in the index entry. A cut costs an index entry. Adjacent pieces can form a group, which
shares an FDE. That saves an index entry and an attribute, and a row if one piece begins with the rule that the previous one ends
with; but wide row starts cost more. A piece, or a run of adjacent pieces, whose rows are repeated elsewhere shares their block
(the bytes of its rows, format/pack.py), and costs only its index entry. A dynamic program over the pieces by address weighs these
costs: up to a piece, the section has the smallest size before a group that ends with the piece, plus the group's size.
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
    kind_bytes="const unsigned char[::1]", symbols="const unsigned long long[::1]", uncovered="const unsigned long long[::1]",
    may_follow="unsigned char[::1]",
)  # fmt: skip
def mark_followers(
    functions: Functions, kind_bytes: Bytes, areas: Areas, symbols: Column, uncovered: Column, max_gap: cython.ulonglong,
    may_follow: bytearray,
) -> None:  # fmt: skip
    """Mark in `may_follow` each function that may share an FDE with the previous one.

    Both are of one kind, and not of PC type MASK. Between them are at most `max_gap` bytes, all padding by the area's patterns, and
    no address in `symbols` or `uncovered`. Functions, `symbols` and `uncovered` ascend. `kind_bytes`: from encode_kinds.
    """
    function: cython.Py_ssize_t
    area: cython.Py_ssize_t = 0
    next_symbol: cython.Py_ssize_t = 0
    next_uncovered: cython.Py_ssize_t = 0
    gap_start: cython.ulonglong
    gap_end: cython.ulonglong
    for function in range(1, len(functions.start)):
        if cython.compiled and function + 16 < len(functions.start):  # so far ahead, the bytes are in the CPU's cache in time
            areas.prefetch_byte(area, functions.start[function + 16] - 1)
        gap_start = functions.start[function - 1] + functions.size[function - 1]
        gap_end = functions.start[function]
        if functions.kind[function] != functions.kind[function - 1] or gap_end - gap_start > max_gap:
            continue
        if is_masked(kind_bytes[3 * functions.kind[function]]):
            continue
        while next_symbol < len(symbols) and symbols[next_symbol] < gap_start:
            next_symbol += 1
        while next_uncovered < len(uncovered) and uncovered[next_uncovered] < gap_start:
            next_uncovered += 1
        if next_symbol < len(symbols) and symbols[next_symbol] < gap_end:
            continue
        if next_uncovered < len(uncovered) and uncovered[next_uncovered] < gap_end:
            continue
        while area < len(areas.end) and areas.end[area] <= functions.start[function - 1]:
            area += 1
        if area == len(areas.end) or gap_end >= areas.end[area]:
            continue
        if areas.padding_end(area, gap_start, gap_end, True) == gap_end:  # True: the last no-op ends there
            may_follow[function] = 1


@cython.boundscheck(False)
@cython.locals(sharers="unsigned int[::1]", begins_piece="unsigned char[::1]")
def mark_pieces(
    functions: Functions, words: Words, blocks: Blocks, sharers: Column, begins_piece: Column, min_share: cython.ulonglong,
    min_body: cython.longlong,
) -> int:  # fmt: skip
    """Mark in `begins_piece` the first row of each piece; return the number of pieces.

    A function is cut after each row that applies to at least `min_body` bytes of code, unless its share of the bytes of its block
    is less than `min_share`, or it is of PC type MASK. `sharers`: zeros; gets the number of functions that use each owner's block.
    """
    count: cython.Py_ssize_t = len(functions.start)
    function: cython.Py_ssize_t
    row: cython.Py_ssize_t
    for function in range(len(functions.start)):
        sharers[blocks.owner[function]] += 1
    for function in range(len(functions.start)):
        if functions.first_row[function] == functions.first_row[function + 1]:
            raise IndexError(function)
        begins_piece[functions.first_row[function]] = 1
        if blocks.size[function] < min_share * sharers[blocks.owner[function]]:
            continue
        if is_masked(words.kind_bytes[3 * functions.kind[function]]):
            continue
        for row in range(functions.first_row[function] + 1, functions.first_row[function + 1]):
            if functions.row_start[row] - functions.row_start[row - 1] >= min_body:
                begins_piece[row] = 1
                count += 1
    return count


class Groups:
    """The groups of pieces that share an FDE: columns with an entry for each piece, and scratch columns.

    `fill_pieces` fills `may_follow` (1 if only padding separates the piece from the previous one, and both have one kind, of PC
    type INC), `function_begin` (the first piece of its function), `same_rows_as` (a piece of an earlier function with the same
    rows, or itself) and `function_block_size` (for the last of several pieces of a function: its share of the bytes of its block).
    `choose_groups` fills group_begin[p + 1] (the first piece of the group that ends with piece p), smallest_size[p] (bytes of the
    section before p), `begins_group` (1 if the piece begins a group), `is_joined` (1 if its group has other pieces, so that it does
    not use a block of its own), `sharers` (how many pieces use the block that it owns), `joined_size` (bytes of its rows without
    their starts) and `repeated` (bytes of its first row if that repeats the previous piece's last row, else 0).

    `equal_run` has an entry for each last piece of a run of two pieces, then of three, up to `longest_run`: the last piece of the
    first run with the same rows at the same distances, or itself. `times_chosen`: how many runs equal to it are groups.
    """

    def __init__(self, count: int, longest_run: int) -> None:
        self.may_follow, self.begins_group, self.is_joined = make_columns("BBB", count)
        self.function_begin, self.same_rows_as, self.sharers, self.joined_size, self.repeated = make_columns("IIIII", count)
        self.group_begin, self.function_block_size, self.smallest_size = make_columns("IQQ", count + 1)
        self.equal_run, self.times_chosen = make_columns("II", count * (longest_run - 1))


@cython.boundscheck(False)
@cython.locals(
    may_follow="const unsigned char[::1]", sharers="const unsigned int[::1]", begins_piece="const unsigned char[::1]",
    first_piece="unsigned int[::1]",
)  # fmt: skip
def fill_pieces(
    functions: Functions, blocks: Blocks, may_follow: Bytes, sharers: Column, begins_piece: Column, first_piece: Column,
    pieces: Functions, groups: Groups,
) -> None:  # fmt: skip
    """Fill the columns of the pieces that `mark_pieces` marked, and their entries in `groups`. The column of rules is not filled.

    `first_piece`: scratch, the first piece of each function. Functions with the same block are cut at the same offsets.
    """
    piece: cython.Py_ssize_t = 0
    first: cython.Py_ssize_t  # the function's first piece
    function: cython.Py_ssize_t
    row: cython.Py_ssize_t
    base: cython.longlong  # the offset of the piece in the function
    for function in range(len(functions.start)):
        if function + 16 < len(functions.start) and cython.compiled:
            prefetch(cython.address(first_piece[blocks.owner[function + 16]]))  # type: ignore[attr-defined]
            prefetch(cython.address(sharers[blocks.owner[function + 16]]))  # type: ignore[attr-defined]
        first = piece
        first_piece[function] = piece
        base = 0
        for row in range(functions.first_row[function], functions.first_row[function + 1]):
            if begins_piece[row]:
                if piece > first:
                    pieces.size[piece - 1] = functions.row_start[row] - base
                base = functions.row_start[row]
                pieces.start[piece] = functions.start[function] + base
                pieces.kind[piece] = functions.kind[function]
                pieces.first_row[piece] = row
                groups.may_follow[piece] = 1 if piece > first else may_follow[function]
                groups.function_begin[piece] = first
                groups.same_rows_as[piece] = first_piece[blocks.owner[function]] + (piece - first)
                piece += 1
            pieces.row_start[row] = functions.row_start[row] - base
        pieces.size[piece - 1] = functions.size[function] - base
        if piece - first > 1:
            groups.function_block_size[piece - 1] = blocks.size[function] // sharers[blocks.owner[function]]
    pieces.first_row[piece] = len(pieces.row_start)


@cython.boundscheck(False)
@cython.locals(start="const unsigned long long[::1]", owner="const unsigned int[::1]", hash_slots="unsigned int[::1]")
def find_equal_runs(pieces: Functions, blocks: Blocks, groups: Groups, hash_slots: Column) -> None:
    """Fill groups.equal_run, and groups.times_chosen as if each run were a group.

    `hash_slots`: a scratch column whose size is a power of two, for 1 + the last piece of each different run. A run can only repeat
    if its prefix (the run without its last piece) repeats, so most pieces are not looked up.
    """
    start = pieces.start
    owner = blocks.owner
    count: cython.Py_ssize_t = len(start)
    mask: cython.longlong = len(hash_slots) - 1
    table: cython.Py_ssize_t  # index of the entries for runs of one length: 0 for runs of two pieces, `count` for three, and so on
    last: cython.Py_ssize_t
    other: cython.Py_ssize_t
    followers: cython.Py_ssize_t  # how many pieces up to `last` may each follow the previous one
    prefix: cython.Py_ssize_t  # stands for the prefix: the owner of its only piece's rows, or the first run that is equal to it
    slot: cython.longlong
    for last in range(count):
        groups.sharers[owner[last]] += 1
    for table in range(0, len(groups.equal_run), count):
        followers = 0
        for slot in range(len(hash_slots)):
            hash_slots[slot] = 0
        for last in range(count):
            groups.equal_run[table + last] = last
            groups.times_chosen[table + last] += 1
            followers = followers + 1 if groups.may_follow[last] else 0
            if followers * count <= table:
                continue
            prefix = owner[last - 1] if table == 0 else groups.equal_run[table - count + last - 1]
            if (groups.sharers[prefix] if table == 0 else groups.times_chosen[table - count + prefix]) < 2:
                continue
            # A hash of the prefix, and of the last piece's rows and its distance from the piece before.
            slot = (((prefix * 0x10193 + owner[last]) * 0x10193 + (start[last] - start[last - 1])) * 0x45D9F3B >> 20) & mask
            for _ in range(32):  # probes at most: a repetition that is not found only costs bytes
                if hash_slots[slot] == 0:
                    hash_slots[slot] = last + 1
                    break
                other = hash_slots[slot] - 1
                if (
                    owner[other] == owner[last]
                    and start[other] - start[other - 1] == start[last] - start[last - 1]
                    and (owner[other - 1] if table == 0 else groups.equal_run[table - count + other - 1]) == prefix
                ):
                    groups.equal_run[table + last] = other
                    groups.times_chosen[table + last] -= 1
                    groups.times_chosen[table + other] += 1
                    break
                slot = (slot + 1) & mask


@cython.boundscheck(False)
def choose_groups(
    pieces: Functions, words: Words, blocks: Blocks, groups: Groups, index_size: cython.ulonglong,
    attribute_size: cython.longlong, max_rows: cython.longlong, max_span: cython.ulonglong,
) -> int:  # fmt: skip
    """Fill groups.group_begin so that the section up to each piece is as small as possible; return the number of groups.

    `index_size`, `attribute_size`: bytes of an index entry and an attribute. Groups have at most `max_rows` rows. A group of
    several functions spans at most `max_span` bytes of code; a whole function may always be a group. This changes
    `groups.is_joined` and `groups.times_chosen`, which the costs depend on, so that another call can find a better result.
    """
    last: cython.Py_ssize_t
    rule: cython.Py_ssize_t
    row: cython.Py_ssize_t
    rows: cython.longlong
    function_begin: cython.Py_ssize_t
    size: cython.ulonglong
    for last in range(len(pieces.start)):
        groups.sharers[last] = 0
    for last in range(len(pieces.start)):
        if not groups.is_joined[last]:
            groups.sharers[blocks.owner[last]] += 1
    groups.smallest_size[0] = 0
    for last in range(len(pieces.start)):
        if last + 16 < len(pieces.start) and cython.compiled:
            prefetch(cython.address(groups.sharers[blocks.owner[last + 16]]))  # type: ignore[attr-defined]
        size = blocks.size[last]
        row = pieces.first_row[last]
        rows = pieces.first_row[last + 1] - row
        groups.joined_size[last] = size - attribute_size - rows * start_width(blocks.fre_type[last])
        groups.repeated[last] = 0
        if last > 0 and groups.may_follow[last] and pieces.row_rule[row - 1] == pieces.row_rule[row]:
            rule = 2 * pieces.row_rule[row] + words.kind_bytes[pieces.kind[last] * 3 + 1]
            groups.repeated[last] = words.rule_at[rule + 1] - words.rule_at[rule]
        if groups.sharers[blocks.owner[last]] > 1:
            size = size // groups.sharers[blocks.owner[last]]
        groups.smallest_size[last + 1] = groups.smallest_size[last] + index_size + size  # if the piece is a group of its own
        groups.group_begin[last + 1] = last
        function_begin = groups.function_begin[last]
        size = groups.smallest_size[function_begin] + index_size + groups.function_block_size[last]  # if the function is not cut
        if groups.function_block_size[last] and size <= groups.smallest_size[last + 1]:
            groups.smallest_size[last + 1] = size
            groups.group_begin[last + 1] = function_begin
        weigh_groups(pieces, groups, last, index_size, attribute_size, max_rows, max_span)
    return mark_groups(groups)


@cython.boundscheck(False)
@cython.cfunc
@cython.exceptval(-1)
def weigh_groups(
    pieces: Functions, groups: Groups, last: cython.Py_ssize_t, index_size: cython.ulonglong, attribute_size: cython.longlong,
    max_rows: cython.longlong, max_span: cython.ulonglong,
) -> cython.int:  # fmt: skip
    """Compute the costs of all groups of several pieces that end with piece `last`; record one that makes the section smaller."""
    function_begin: cython.Py_ssize_t = groups.function_begin[last]
    end: cython.ulonglong = pieces.start[last] + pieces.size[last]
    last_row: cython.ulonglong = pieces.start[last] + pieces.row_start[pieces.first_row[last + 1] - 1]
    smallest: cython.ulonglong = groups.smallest_size[last + 1]  # so far
    rows: cython.longlong = 0
    size: cython.longlong = attribute_size
    first: cython.Py_ssize_t = last
    run: cython.Py_ssize_t
    cost: cython.ulonglong
    while True:
        rows += pieces.first_row[first + 1] - pieces.first_row[first]
        if rows > max_rows:
            break
        size += groups.joined_size[first]
        if first < function_begin and end - pieces.start[first] > max_span:  # a group of several functions
            break
        if first < last:
            cost = size + rows * start_width(fre_type_for(last_row - pieces.start[first]))
            run = (last - first - 1) * len(pieces.start) + last
            if run < len(groups.equal_run):  # equal runs that are groups share a block
                run += groups.equal_run[run] - last
                if groups.times_chosen[run] > 1:
                    cost = cost // groups.times_chosen[run]
            cost += groups.smallest_size[first] + index_size
            if cost < smallest:
                smallest = cost
                groups.group_begin[last + 1] = first
        if first == 0 or not groups.may_follow[first]:
            break
        size -= groups.repeated[first]
        rows -= groups.repeated[first] != 0
        first -= 1
    groups.smallest_size[last + 1] = smallest
    return 0


@cython.boundscheck(False)
@cython.cfunc
@cython.exceptval(-1)
def mark_groups(groups: Groups) -> cython.Py_ssize_t:
    """Fill `begins_group`, `is_joined` and `times_chosen`, from the last group to the first; return the number of groups."""
    count: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t = len(groups.begins_group)
    piece: cython.Py_ssize_t
    run: cython.Py_ssize_t
    for piece in range(end):
        groups.begins_group[piece] = 0
        groups.is_joined[piece] = 1
    for run in range(len(groups.times_chosen)):
        groups.times_chosen[run] = 0
    while end > 0:
        piece = groups.group_begin[end]
        groups.begins_group[piece] = 1
        run = (end - piece - 2) * len(groups.begins_group) + end - 1
        if piece == end - 1:
            groups.is_joined[piece] = 0
        elif run < len(groups.equal_run):
            groups.times_chosen[run - (end - 1) + groups.equal_run[run]] += 1
        end = piece
        count += 1
    return count


@cython.boundscheck(False)
@cython.locals(
    same_rows_as="unsigned int[::1]", joined_number="unsigned int[::1]", row_start="const unsigned int[::1]",
    row_rule="const unsigned int[::1]", joined_start="unsigned int[::1]", joined_rule="unsigned int[::1]",
)  # fmt: skip
def fill_joined(pieces: Functions, blocks: Blocks, groups: Groups, joined: Functions, same_rows_as: Column) -> int:
    """Fill the columns of the joined functions, one for each piece that `groups.begins_group` marks; return the number of rows.

    `same_rows_as` gets an earlier joined function whose pieces have the same rows, or the function itself. Two columns of `groups`
    get another use: group_begin (see `joined_number`), and sharers for 1 + the first such piece that has an owner's rows.
    """
    joined_number = groups.group_begin  # by piece: the number of the joined function that begins with it
    row_start = pieces.row_start
    row_rule = pieces.row_rule
    joined_start = joined.row_start
    joined_rule = joined.row_rule
    count: cython.Py_ssize_t = 0
    piece: cython.Py_ssize_t
    end: cython.Py_ssize_t = 0
    rows: cython.Py_ssize_t = 0
    first_row: cython.Py_ssize_t
    row: cython.Py_ssize_t
    other: cython.Py_ssize_t  # the first piece of an earlier joined function, whose pieces may be equal
    equal_pieces: cython.Py_ssize_t
    distance: cython.longlong
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
        first_row = rows
        while end == piece or (end < len(pieces.start) and not groups.begins_group[end]):
            distance = pieces.start[end] - base
            for row in range(pieces.first_row[end], pieces.first_row[end + 1]):
                if rows > first_row and joined_rule[rows - 1] == row_rule[row]:
                    continue
                joined_start[rows] = distance + row_start[row]
                joined_rule[rows] = row_rule[row]
                rows += 1
            end += 1
        joined.size[count] = pieces.start[end - 1] + pieces.size[end - 1] - base
        joined_number[piece] = count
        same_rows_as[count] = count
        other = groups.sharers[blocks.owner[piece]]
        if other == 0:
            groups.sharers[blocks.owner[piece]] = piece + 1
        else:
            other, equal_pieces = other - 1, 0
            while piece + equal_pieces < end and blocks.owner[piece + equal_pieces] == blocks.owner[other + equal_pieces]:
                distance = pieces.start[other + equal_pieces] - pieces.start[other]
                if pieces.start[piece + equal_pieces] - base != distance:
                    break
                if groups.begins_group[piece + equal_pieces] != groups.begins_group[other + equal_pieces]:
                    break
                equal_pieces += 1
            if piece + equal_pieces == end and groups.begins_group[other + equal_pieces]:
                same_rows_as[count] = joined_number[other]
        count += 1
    joined.first_row[count] = rows
    return rows
