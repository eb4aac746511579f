"""How small a section is made: levels of optimisation, from one FDE a function to neighbours joined under one."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Literal, NamedTuple

from sframegen.elf.columns import Areas
from sframegen.elf.padding import padding_states
from sframegen.format.encode import Encoder, kind_bytes
from sframegen.format.model import FunctionTable
from sframegen.tables.join import Groups, followers, group, rebuild

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sframegen.elf.file import ElfFile
    from sframegen.elf.ranges import Range
    from sframegen.format.words import EncodedRules

ROUNDS = 2  # what functions share depends on which stay alone, and that on what they share
MAX_GAP = 15  # bytes of padding between joined functions


class Level(NamedTuple):
    """`share`: functions with the same rows have them once. Neighbours share an FDE of at most this many rows and bytes of code."""

    share: bool
    max_rows: int = 0
    max_span: int = 0


# fast: no look-up scans more rows than in a function of middling size, and no row start takes more than one byte. size: the rows of
# an FDE are still few enough for a linear scan.
LevelName = Literal["none", "share", "fast", "size"]
LEVELS: dict[LevelName, Level] = {
    "none": Level(share=False),
    "share": Level(share=True),
    "fast": Level(True, 16, 256),
    "size": Level(True, 64, 65536),
}


class Borders(NamedTuple):
    """What is not between functions that share an FDE."""

    symbols: Iterable[int]  # addresses that symbols name
    unsaid: Iterable[int] = ()  # addresses where code begins that is left out
    ignored: Iterable[Range] = ()  # code of FDEs that are ignored: ranges, without overlaps


def encoder_of(elf: ElfFile, table: FunctionTable, encoded: EncodedRules, level: Level, borders: Borders) -> Encoder:
    """The encoder of the table at that level: the same rules at every address that the table covers."""
    encoder = encoder_at(table, encoded, level)
    if level.max_rows and len(table):
        table = join(table, encoder, level, may_follow(elf, table, borders))
        encoder = encoder_at(table, encoded, level)
    return encoder


def encoder_at(table: FunctionTable, encoded: EncodedRules, level: Level) -> Encoder:
    """The encoder for the unchanged table, with blocks shared if the level says so."""
    abi = encoded.abi
    return Encoder(table, abi, encoded.layout, share=level.share and abi.shares_rows, encoded=encoded)


def may_follow(elf: ElfFile, table: FunctionTable, borders: Borders) -> bytearray:
    """For each function, whether it may share an FDE with the one before it.

    Between them is nothing but padding, without a symbol in it, and without CFI: no-ops can be code that is left out.
    """
    loads = elf.executable_loads()
    for load in loads:
        elf.slice(load.p_offset, load.p_filesz, "PT_LOAD")
    areas = Areas(
        elf.data,
        padding_states(elf.header.e_machine),
        array("Q", [load.p_vaddr for load in loads]),
        array("Q", [load.p_vaddr + load.p_filesz for load in loads]),
        array("Q", [load.p_offset for load in loads]),
        b"",
    )
    places = array("Q", sorted([*borders.symbols, *borders.unsaid]))
    marks = bytearray(len(table))
    followers(table.columns(), kind_bytes(table.kinds), areas, places, MAX_GAP, marks)
    for start, end in borders.ignored:
        first, last = bisect_left(table.start, start), bisect_right(table.start, end) + 1
        marks[first:last] = bytes(len(marks[first:last]))
    return marks


def join(table: FunctionTable, encoder: Encoder, level: Level, may_follow: bytes | bytearray) -> FunctionTable:
    """Neighbours as one function where that makes the section smaller; padding between them is covered too.

    `encoder`: the table's, so that what each function costs is known.
    """
    functions, words, _, blocks = encoder.columns()
    groups = Groups(may_follow)
    layout = encoder.layout
    count = len(table)
    for _ in range(ROUNDS):
        count = group(functions, words, blocks, groups, layout.index_size, layout.attribute_size, level.max_rows, level.max_span)
    joined = FunctionTable.with_room(count, len(table.row_start), table.kinds, table.rules)
    joined.shrink(count, rebuild(functions, groups, joined.columns()))
    return joined
