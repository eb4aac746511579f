"""Functions of several sections in one table; tests/linker/merge has whole files."""

from __future__ import annotations

import pytest

from sframegen.base.errors import FormatError
from sframegen.format.abi import AARCH64, AMD64, Abi
from sframegen.format.decode import open_section
from sframegen.format.encode import Encoder
from sframegen.format.layouts import F_FRAME_POINTER, V2, V3, Layout
from sframegen.format.model import FunctionTable, Kind, Rule, Where
from sframegen.tables.gather import DROPPED_ADDRESS, Merger, concatenate_tables
from tests.support import tables
from tests.support.loops import for_each

RULES = [Rule(Where(AMD64.sp, 8 * n), Where(None, -8, deref=True)) for n in range(1, 6)]
KINDS = [Kind(), Kind(key_b=True)]

Function = tuple[int, int, int, list[tuple[int, int]]]  # start, size, number of kind, rows of offset and number of rule


def table_of(*functions: Function) -> FunctionTable:
    """Only with the kinds and rules that it needs, in the order in which it needs them."""
    table = FunctionTable()
    for start, size, kind, rows in functions:
        for number in (number for _, number in rows):
            if RULES[number] not in table.rules:
                table.rules.append(RULES[number])
        if KINDS[kind] not in table.kinds:
            table.kinds.append(KINDS[kind])
        numbered = [(offset, table.rules.index(RULES[number])) for offset, number in rows]
        table.append(start, size, table.kinds.index(KINDS[kind]), numbered)
    return table


def content(table: FunctionTable) -> list[Function]:
    functions = tables.content(table)
    return [
        (start, size, KINDS.index(kind), [(at, RULES.index(rule)) for at, rule in rows]) for start, size, kind, rows in functions
    ]


def merger_of(*tables: FunctionTable, layout: Layout = V3, flags: int = 0) -> Merger:
    merger = Merger()
    for table in tables:
        encoder = Encoder(table, AMD64, layout)
        encoder.flags |= flags
        merger.add(open_section(encoder.encode(0x9000), 0x9000))
    return merger


ONE = (0x1000, 16, 0, [(0, 0), (4, 1)])
TWO = (0x1020, 16, 1, [(0, 2), (4, 0)])
THREE = (0x1010, 8, 0, [(0, 3)])


def test_tables_keep_what_they_say() -> None:
    together = concatenate_tables([table_of(ONE), table_of(TWO, THREE), FunctionTable(), table_of(ONE)])
    assert content(together) == [ONE, TWO, THREE, ONE]
    assert together.rules == [RULES[0], RULES[1], RULES[2], RULES[3]]
    assert together.kinds == KINDS


@for_each(
    ("code", "kept"),
    [
        ([], [ONE, THREE, TWO]),
        ([(0x1000, 0x1030)], [ONE, THREE, TWO]),
        ([(0x1000, 0x102F)], [ONE, THREE]),
        ([(0x1001, 0x1030)], [THREE, TWO]),
        ([(0x1000, 0x1010), (0x1020, 0x1030)], [ONE, TWO]),
        ([(0x0, 0x10), (0x1010, 0x1018)], [THREE]),
        ([(0x2000, 0x3000)], []),
    ],
)
def test_only_functions_whose_code_is_there_are_kept(code: list[tuple[int, int]], kept: list[Function]) -> None:
    table, dead = merger_of(table_of(ONE, THREE, TWO)).build_table(code)
    assert (content(table), dead) == (kept, 3 - len(kept))


def test_functions_without_code_are_left_out() -> None:
    merger = Merger()
    section = open_section(Encoder(table_of(ONE, TWO), AMD64).encode(0x9000), 0x9000)
    assert list(merger.add(section, [0x5000, DROPPED_ADDRESS])) == [16, 16]
    assert list(merger.add(section, [0x4000, 0x4000])) == [16, 16]
    table, dead = merger.build_table([(0x4000, 0x6000)])
    assert dead == 1
    assert sorted(content(table)) == sorted([(0x4000, *ONE[1:]), (0x4000, *TWO[1:]), (0x5000, *ONE[1:])])
    assert table.start[2] == 0x5000
    empty = table_of((0x1000, 0, 0, [(0, 0)]), ONE)
    assert merger_of(empty).build_table([(0x1000, 0x2000)])[1] == 1


def test_of_several_at_one_address_a_search_finds_the_longest() -> None:
    """Those that say the same are there once, in whatever order sections come."""
    short, other = (0x1000, 8, 0, [(0, 4)]), (0x1000, 16, 0, [(0, 0), (4, 2)])
    tables = [table_of(one) for one in (ONE, short, other, ONE)]
    found = content(merger_of(*tables).build_table([(0x1000, 0x2000)])[0])
    assert found[0] == short
    assert len(found) == 3
    assert content(merger_of(*reversed(tables)).build_table([(0x1000, 0x2000)])[0]) == found


@for_each(("flags", "both"), [((F_FRAME_POINTER, F_FRAME_POINTER), F_FRAME_POINTER), ((F_FRAME_POINTER, 0), 0)])
def test_what_holds_for_all_sections(flags: tuple[int, int], both: int) -> None:
    merger = Merger()
    for flag, layout in zip(flags, (V2, V3), strict=True):
        encoder = Encoder(table_of(ONE), AMD64, layout)
        encoder.flags |= flag
        merger.add(open_section(encoder.encode(0x9000), 0x9000))
    assert (merger.flags, merger.sections, merger.versions, merger.fixed_offsets) == (both, 2, {2, 3}, {(0, -8)})
    assert merger.abi is not None
    assert merger.abi.name == "AMD64"


def test_sections_of_two_abis_are_refused() -> None:
    def empty(abi: Abi) -> FunctionTable:
        return FunctionTable(rules=[Rule(Where(abi.sp, 16))])

    merger = Merger()
    merger.add(open_section(Encoder(empty(AMD64), AMD64).encode(0), 0))
    with pytest.raises(FormatError, match="SFrame section for AArch64, others are for AMD64"):
        merger.add(open_section(Encoder(empty(AARCH64), AARCH64).encode(0), 0))
