"""Makes a section as small as its level asks: one FDE a function, or pieces of functions, alone or joined."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

from sframegen.base.columns import room, zeros
from sframegen.elf.code_areas import CodeArea, areas_of, code_segments
from sframegen.format.encode import EMPTY, Encoder, kind_bytes
from sframegen.format.model import FunctionTable
from sframegen.tables.join import Groups, cut, find_runs, followers, group, rebuild, take_apart

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sframegen.base.columns import Column
    from sframegen.elf.file import ElfFile
    from sframegen.elf.ranges import Range
    from sframegen.format.abi import Abi
    from sframegen.format.words import EncodedRules
    from sframegen.tables.levels import Level

MAX_GAP = 15  # bytes of padding between joined functions
NEVER = 0xFFFFFFFF  # bytes that no block has


class Borders(NamedTuple):
    """What is not between functions that share an FDE."""

    symbols: Column  # addresses that symbols name, ascending
    unsaid: Column = zeros("Q", 0)  # addresses where code begins that is left out, ascending
    ignored: Iterable[Range] = ()  # code of FDEs that are ignored: ranges, without overlaps


def encoder_of(elf: ElfFile, table: FunctionTable, encoded: EncodedRules, level: Level, borders: Borders) -> Encoder:
    """The encoder of the table at that level: the same rules at every address that the table covers."""
    encoder = encoder_at(table, encoded, level)
    if level.max_rows and len(table):
        return join(table, encoder, level, may_follow(elf, table, borders))
    return encoder


def encoder_at(table: FunctionTable, encoded: EncodedRules, level: Level, like: Column = EMPTY) -> Encoder:
    """The encoder for the unchanged table, with blocks shared if the level says so."""
    return Encoder(table, encoded.abi, encoded.layout, share=shares(encoded.abi, level), encoded=encoded, like=like)


def shares(abi: Abi, level: Level) -> bool:
    return level.share and abi.shares_rows


def may_follow(elf: ElfFile, table: FunctionTable, borders: Borders) -> bytearray:
    """For each function, whether it may share an FDE with the one before it.

    Between them is nothing but padding, without a symbol in it, and without CFI: no-ops can be code that is left out.
    """
    areas = areas_of(elf, [CodeArea(segment, segment.start, segment.end) for segment in code_segments(elf)])
    marks = bytearray(len(table))
    followers(table.columns(), kind_bytes(table.kinds), areas, borders.symbols, borders.unsaid, MAX_GAP, marks)
    for start, end in borders.ignored:
        first, last = bisect_left(table.start, start), bisect_right(table.start, end) + 1
        marks[first:last] = bytes(len(marks[first:last]))
    return marks


def join(table: FunctionTable, encoder: Encoder, level: Level, may_follow: bytes | bytearray) -> Encoder:
    """The encoder of the same rules in other FDEs, where that makes the section smaller; padding between neighbours is covered too.

    `encoder`: the table's, which says what each function costs.
    """
    pieces, groups = cut_up(table, encoder, level, may_follow)
    layout = encoder.layout
    functions, words, _, blocks = encoder_at(pieces, encoder.encoded, level, groups.like).columns()
    if len(groups.run):
        find_runs(functions, blocks, groups, *room("I", 2 << len(pieces).bit_length()))
    count = 0
    for _ in range(level.rounds):
        count = group(functions, words, blocks, groups, layout.index_size, layout.attribute_size, level.max_rows, level.max_span)
    joined = FunctionTable.with_room(count, len(table.row_start), table.kinds, table.rules)
    [like] = room("I", count)
    joined.shrink(count, rebuild(functions, blocks, groups, joined.columns(), like))
    found = encoder_at(joined, encoder.encoded, level, like)
    return found if found.size_bytes < encoder.size_bytes else encoder


def cut_up(table: FunctionTable, encoder: Encoder, level: Level, may_follow: bytes | bytearray) -> tuple[FunctionTable, Groups]:
    """The same rules in the smallest ranges that an FDE may be of, and which of them may share one."""
    functions, words, _, blocks = encoder.columns()
    sharers, piece_of = room("II", len(table))
    [begins] = room("B", len(table.row_start))
    worth = encoder.layout.index_size if shares(encoder.abi, level) else NEVER
    count = cut(functions, words, blocks, sharers, begins, worth, level.body)
    pieces = FunctionTable.with_room(count, len(begins), table.kinds, table.rules)
    pieces.row_rule = table.row_rule
    groups = Groups(count, level.longest)
    take_apart(functions, blocks, may_follow, sharers, begins, piece_of, pieces.columns(), groups)
    return pieces, groups
