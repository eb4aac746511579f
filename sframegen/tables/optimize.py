"""Makes a section smaller, as far as the level allows, by choosing which code each FDE covers; join.py explains what that saves.

It takes a table, and returns the encoder of a table with the same rules at the same addresses:

1. `find_followers` marks the functions that may share an FDE with the previous one, because only padding is between them.
2. `cut_into_pieces` cuts functions after long rows, which are bodies of functions. A piece is the smallest range for an FDE.
3. `join_pieces` chooses groups of adjacent pieces, of several functions perhaps, so that the section is smallest. The size of a
   group depends on which others have the same rows and share its block, and these on the choice: hence several rounds.
4. Each group becomes one FDE. If the new section is not smaller than that of the unchanged table, the latter is kept.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from sframegen.base.columns import make_columns, zeros
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.elf.code_areas import CodeArea, build_areas, code_segments
from sframegen.format.encode import EMPTY_COLUMN, Encoder, encode_kinds
from sframegen.format.model import FunctionTable
from sframegen.program.own_memory import drop_pages
from sframegen.tables.join import Groups, choose_groups, fill_joined, fill_pieces, find_equal_runs, mark_followers, mark_pieces

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sframegen.base.columns import Column
    from sframegen.elf.file import ElfFile
    from sframegen.elf.ranges import Range
    from sframegen.format.abi import Abi
    from sframegen.format.words import EncodedRules
    from sframegen.tables.levels import Level

MAX_GAP = 15  # bytes of padding between joined functions; aligning a function to 16 bytes takes no more
NEVER_CUT = 0xFFFFFFFF  # in place of `min_share`: more bytes than any block has


class Borders(NamedTuple):
    """Addresses and ranges that must not lie between functions that share an FDE."""

    symbols: Column  # addresses of symbols, ascending
    uncovered: Column = zeros("Q", 0)  # starts of the ranges of code that are left out, ascending
    ignored: Iterable[Range] = ()  # the code of FDEs that are ignored, without overlaps


def build_optimized_encoder(elf: ElfFile, table: FunctionTable, encoded: EncodedRules, level: Level, borders: Borders) -> Encoder:
    """Return the encoder of the table, optimized for the level. Every address that the table covers keeps its rule."""
    encoder = build_encoder(table, encoded, level)
    if level.max_rows and len(table):
        may_follow = find_followers(elf, table, borders)
        if elf.status is not None:  # the file itself is mapped, without changes in memory that dropped pages would lose
            drop_pages(elf.data)  # its code is not read again
        return join_pieces(table, encoder, level, may_follow)
    return encoder


def build_encoder(table: FunctionTable, encoded: EncodedRules, level: Level, same_rows_as: Column = EMPTY_COLUMN) -> Encoder:
    """Return the encoder of the unchanged table. Functions share blocks if the level and the ABI allow it."""
    share = may_share_blocks(encoded.abi, level)
    return Encoder(table, encoded.abi, encoded.layout, share=share, encoded=encoded, same_rows_as=same_rows_as)


def may_share_blocks(abi: Abi, level: Level) -> bool:
    return level.share and abi.shares_rows


def find_followers(elf: ElfFile, table: FunctionTable, borders: Borders) -> bytearray:
    """Return for each function 1 if it may share an FDE with the previous one, else 0.

    It may if only padding without a symbol separates them. No-ops that CFI describes, but no rule covers, are not padding.
    """
    areas = build_areas(elf, [CodeArea(segment, segment.start, segment.end) for segment in code_segments(elf)])
    may_follow = bytearray(len(table))
    mark_followers(table.columns(), encode_kinds(table.kinds), areas, borders.symbols, borders.uncovered, MAX_GAP, may_follow)
    for start, end in borders.ignored:  # neither a function that begins in the range nor the next one may be joined
        separate = slice(bisect_left(table.start, start), bisect_right(table.start, end) + 1)
        may_follow[separate] = bytes(len(may_follow[separate]))
    return may_follow


def join_pieces(table: FunctionTable, encoder: Encoder, level: Level, may_follow: bytes | bytearray) -> Encoder:
    """Return an encoder with the same rules in other FDEs, or `encoder` itself if its section is not larger.

    `encoder`: the encoder of `table`. Joined functions also cover the padding between them.
    """
    pieces, groups = cut_into_pieces(table, encoder, level, may_follow)
    layout = encoder.layout
    functions, words, _, blocks = build_encoder(pieces, encoder.encoded, level, groups.same_rows_as).columns()
    if len(groups.equal_run):
        [hash_slots] = make_columns("I", 2 << len(pieces).bit_length())
        find_equal_runs(functions, blocks, groups, hash_slots)
    group_count = 0
    for _ in range(level.rounds):
        group_count = choose_groups(
            functions, words, blocks, groups, layout.index_size, layout.attribute_size, level.max_rows, level.max_span
        )
    joined = FunctionTable.with_room(group_count, len(table.row_start), table.kinds, table.rules)
    [same_rows_as] = make_columns("I", group_count)
    joined.shrink(group_count, fill_joined(functions, blocks, groups, joined.columns(), same_rows_as))
    joined_encoder = build_encoder(joined, encoder.encoded, level, same_rows_as)
    return joined_encoder if joined_encoder.size_bytes < encoder.size_bytes else encoder


def cut_into_pieces(
    table: FunctionTable, encoder: Encoder, level: Level, may_follow: bytes | bytearray
) -> tuple[FunctionTable, Groups]:
    """Return the table of pieces, as if each were a function, and the columns of `Groups` for them, filled as far as is known."""
    functions, words, _, blocks = encoder.columns()
    sharers, first_piece = make_columns("II", len(table))  # by function: how many share its block, and its first piece
    [begins_piece] = make_columns("B", len(table.row_start))
    # A function is cut only if its share of its block is at least as large as the index entry that a cut adds.
    min_share = encoder.layout.index_size if may_share_blocks(encoder.abi, level) else NEVER_CUT
    piece_count = mark_pieces(functions, words, blocks, sharers, begins_piece, min_share, level.min_body)
    pieces = FunctionTable.with_room(piece_count, len(begins_piece), table.kinds, table.rules)
    pieces.row_rule = table.row_rule
    groups = Groups(piece_count, level.longest_run)
    fill_pieces(functions, blocks, may_follow, sharers, begins_piece, first_piece, pieces.columns(), groups)
    return pieces, groups
