"""Look-up in a section's bytes says what the decoded section says, and no damaged byte makes it more than that or endless."""

from __future__ import annotations

import struct
from array import array
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sframegen.base.errors import FormatError
from sframegen.format.abi import ABIS, AMD64
from sframegen.format.decode import decode, open_section
from sframegen.format.encode import Encoder
from sframegen.format.layouts import HEADER_CODE, HEADER_SIZE, LAYOUTS, V2, V3, SframeHeader
from sframegen.format.model import OUTERMOST, FdeType, FunctionTable, Kind, Match, Rule, Where, look_up_in
from sframegen.format.section_bytes import BAD, NO_ROWS, NOT_COVERED
from tests.support.loops import for_each
from tests.support.tables import edges, find, function_tables

if TYPE_CHECKING:
    from sframegen.base.columns import Bytes
    from sframegen.format.abi import Abi
    from sframegen.format.layouts import Layout

ADDRESS = 0x3000
FORMS = st.sampled_from([(abi, layout) for abi in ABIS for layout in LAYOUTS.values()])
RA = Where(None, -8, deref=True)
RULES = [Rule(Where(AMD64.sp, 8 * n), RA) for n in range(1, 9)]
KINDS = [
    *(Kind(), Kind(mask=True, rep_size=16), Kind(mask=True, rep_size=5), Kind(signal=True), Kind(mask=True)),
    Kind(FdeType.FLEX),
]


def encode(table: FunctionTable, abi: Abi = AMD64, layout: Layout = V3, address: int = ADDRESS) -> memoryview:
    return Encoder(table, abi, layout, share=True).encode(address)


def agrees(data: Bytes, address: int = ADDRESS) -> set[int]:
    """The addresses at which both ways were compared: each edge of a rule, and around each function."""
    section, table = open_section(data, address), decode(data, address).table
    ends = {start + size for start, size in zip(table.start, table.size, strict=True)}
    pcs = sorted(edges(table) | ends | {start - 1 for start in table.start})
    for pc in pcs:
        assert section.rule_at(pc) == find(table, pc), hex(pc)
    within = array("Q", [pc for pc in pcs if 0 <= pc < 1 << 64])
    functions, rows = array("q", bytes(8 * len(within))), array("q", bytes(8 * len(within)))
    section.seeker.find_all(within, functions, rows)
    assert section.rules_at(within) == [section.rule_at(pc) for pc in within]
    assert section.rules_at([*within[:3], -1, 1 << 64]) == [*map(section.rule_at, within[:3]), None, None]
    for pc, function, row in zip(within, functions, rows, strict=True):
        assert row == section.seeker.find(pc)
        assert function == (-1 if row == NOT_COVERED else section.seeker.function)
        assert row != BAD
        assert row == NOT_COVERED or table.start[function] == section.seeker.start <= pc
    return set(pcs)


@given(st.data(), FORMS)
def test_the_bytes_say_what_the_table_says(data: st.DataObject, form: tuple[Abi, Layout]) -> None:
    agrees(encode(data.draw(function_tables(*form)), *form))


@st.composite
def odd_tables(draw: st.DrawFn) -> FunctionTable:
    """Functions in ascending order: of no size, without rows, of several at one address, at both ends of the address space."""
    table = FunctionTable(kinds=KINDS, rules=[*RULES, OUTERMOST])
    pc = draw(st.sampled_from([0, 1, 0x1000, (1 << 64) - 4000]))
    for _ in range(draw(st.integers(0, 8))):
        pc += draw(st.integers(0, 20))
        size = draw(st.integers(0, 60))
        kind = draw(st.integers(0, len(KINDS) - 1))
        limit = min(size, KINDS[kind].rep_size) if KINDS[kind].mask else size
        offsets = {0, *draw(st.lists(st.integers(1, limit - 1), max_size=5))} if limit > 1 else set(range(limit))
        rows = [(offset, 8 if KINDS[kind].fde_type else draw(st.integers(0, 8))) for offset in sorted(offsets)]
        table.append(pc, size, kind, rows)
        pc += draw(st.sampled_from([size, size // 2, 0]))
    return table


def scan(table: FunctionTable, pc: int) -> Rule | None:
    """The rule at `pc`, by looking at everything: the last function that begins at or before it, the last row that does."""
    answer = None
    for function, (start, size) in enumerate(zip(table.start, table.size, strict=True)):
        if start <= pc:
            answer = None
        if start <= pc < start + size:
            kind = KINDS[table.kind[function]]
            if not table.rows(function) and kind.fde_type is FdeType.DEFAULT:
                answer = OUTERMOST
            for offset, rule in table.rows(function):
                if offset <= (pc - start) % (kind.rep_size or size):
                    answer = rule
    return answer


@given(odd_tables())
def test_find_is_a_linear_scan(table: FunctionTable) -> None:
    data = encode(table)
    section = open_section(data, ADDRESS)
    addresses = {address + near for address in table.start for near in range(-2, 64)} | {0, (1 << 64) - 1}
    for pc in addresses:
        assert section.rule_at(pc) == scan(table, pc)
    with suppress(FormatError):  # a row outside of its function, which no look-up comes to
        agrees(data)


def table_of(*functions: tuple[int, int, int, list[tuple[int, int]]]) -> FunctionTable:
    """Of (start, size, number of kind, rows of offset and number of rule)."""
    table = FunctionTable(kinds=KINDS, rules=RULES)
    for start, size, kind, rows in functions:
        table.append(start, size, kind, rows)
    return table


def small() -> memoryview:
    """Two entries of the index to 60, blocks of 11 and 14 bytes."""
    return encode(table_of((0x1000, 32, 0, [(0, 0), (4, 1)]), (0x1040, 32, 1, [(0, 2), (4, 3), (11, 4)])))


def test_what_is_found() -> None:
    section = open_section(small(), ADDRESS)
    assert section.look_up(0x1005) == Match(0x1000, 32, KINDS[0], 4, RULES[1])
    assert section.look_up(0x105C) == Match(0x1040, 32, KINDS[1], 11, RULES[4])
    for pc in (0xFFF, 0x1020, 0x1060, 0, (1 << 64) - 1, 1 << 64, 1 << 70, -1):
        assert section.look_up(pc) is None
    assert open_section(encode(FunctionTable()), ADDRESS).rule_at(0x1000) is None


@given(st.data(), FORMS)
def test_a_table_without_a_section_is_searched_alike(data: st.DataObject, form: tuple[Abi, Layout]) -> None:
    table = data.draw(function_tables(*form))
    ends = {start + size for start, size in zip(table.start, table.size, strict=True)}
    for pc in edges(table) | ends | {start - 1 for start in table.start}:
        found = look_up_in(table, pc)
        assert (found and found.rule) == find(table, pc)
        assert found is None or found.start <= pc < found.start + found.size


def test_a_table_without_a_section_says_where_the_row_begins() -> None:
    repeated = table_of((0x1000, 64, 1, [(0, 0), (11, 1)]), (0x1040, 8, 0, []), (0x1048, 8, KINDS.index(Kind(FdeType.FLEX)), []))
    assert look_up_in(repeated, 0x101B) == Match(0x1000, 64, KINDS[1], 11, RULES[1])
    assert look_up_in(repeated, 0x101A) == Match(0x1000, 64, KINDS[1], 0, RULES[0])
    assert look_up_in(repeated, 0x1047) == Match(0x1040, 8, KINDS[0], None, OUTERMOST)
    assert look_up_in(repeated, 0x1048) is None
    whole = table_of((0x1000, 64, KINDS.index(Kind(mask=True)), [(0, 0), (11, 1)]))  # without a size, nothing is repeated
    assert look_up_in(whole, 0x103F) == Match(0x1000, 64, Kind(mask=True), 11, RULES[1])


@for_each("fde_type", FdeType)
def test_only_default_functions_without_rows_are_outermost_frames(fde_type: FdeType) -> None:
    kind = KINDS.index(Kind(fde_type))
    section = open_section(encode(table_of((0x1000, 16, kind, []))), ADDRESS)
    expected = Match(0x1000, 16, KINDS[kind], None, OUTERMOST)
    assert section.look_up(0x100F) == (None if fde_type is FdeType.FLEX else expected)
    assert section.seeker.find(0x100F) == NO_ROWS


def test_many_at_once() -> None:
    seeker = open_section(small(), ADDRESS).seeker
    pcs = array("Q", [0x1004, 0x1040, 0x1030, 0, (1 << 64) - 1, 0x1003])
    functions, rows = array("q", bytes(48)), array("q", bytes(48))
    seeker.find_all(pcs, functions, rows)
    assert list(functions) == [0, 1, -1, -1, -1, 0]
    assert list(rows) == [HEADER_SIZE + 32 + place for place in (9, 17)] + [-1] * 3 + [HEADER_SIZE + 32 + 6]
    with pytest.raises(IndexError):
        seeker.find_all(pcs, functions, rows[:5])


def test_starts_that_count_from_the_section_and_an_index_behind_its_rows() -> None:
    data = small()
    header = SframeHeader(*struct.unpack_from("<" + HEADER_CODE, data))
    fres = data[HEADER_SIZE + 32 :]
    header = header._replace(flags=1, auxhdr_len=3, freoff=0, fdeoff=len(fres))
    index = bytearray(data[HEADER_SIZE : HEADER_SIZE + 32])
    for at, start in ((0, 0x1000), (16, 0x1040)):
        struct.pack_into("<q", index, at, start - ADDRESS)
    moved = struct.pack("<" + HEADER_CODE, *header) + b"aux" + fres + index
    assert agrees(moved) == agrees(data)


# -- damaged and hostile


def test_only_what_is_on_the_way_is_read() -> None:
    data = small()
    data[HEADER_SIZE + 16 + 12] = 0xFF  # the second function's block
    section = open_section(data, ADDRESS)
    assert section.rule_at(0x1004) == RULES[1]
    with pytest.raises(FormatError, match=r"^\.sframe\+0x2c: function's FREs lie outside the FRE sub-section"):
        section.rule_at(0x1040)
    with pytest.raises(FormatError, match="function's FREs lie outside"):
        _ = section.table


FIRST_BLOCK = HEADER_SIZE + 32


@for_each(
    ("offset", "value", "message"),
    [
        (HEADER_SIZE + 12, b"\x15", "function's FREs lie outside the FRE sub-section"),
        (HEADER_SIZE + 12, b"\xff\xff\xff\xff", "function's FREs lie outside the FRE sub-section"),
        (FIRST_BLOCK, b"\xff\xff", "do not ascend"),  # 65535 rows: the second block's attribute is the next
        (FIRST_BLOCK + 2, b"\x03", "unknown FRE type"),
        (FIRST_BLOCK + 2, b"\x0f", "unknown FRE type"),
        (FIRST_BLOCK + 3, b"\x05", "unknown FDE type 5"),
        (FIRST_BLOCK + 5, b"\x01", "do not ascend from 0"),
        (FIRST_BLOCK + 6, b"\x63", "unknown data word size"),
        (FIRST_BLOCK + 8, b"\x00", "do not ascend"),
        (FIRST_BLOCK + 9, b"\x5f", "FRE reaches past the end"),
        (FIRST_BLOCK + 9, b"\x07", "data words fit no rule of FDE type DEFAULT"),
    ],
)
def test_what_is_damaged_is_named(offset: int, value: bytes, message: str) -> None:
    data = small()
    data[offset : offset + len(value)] = value
    with pytest.raises(FormatError, match=message):
        open_section(data, ADDRESS).rule_at(0x101F)


def test_a_row_s_info_byte_lies_in_the_sub_section() -> None:
    """Of the second row only its start does. The byte that follows the section would be an info byte with another fault."""
    rows = b"\x00\x03\x08" + b"\x04"
    header = SframeHeader(0xDEE2, 2, 1, 3, 0, -8, 0, 1, 2, len(rows), 0, V2.index_size)
    entry = struct.pack("<iIIIBBH", 0x1000 - ADDRESS, 16, 0, 2, 0, 0, 0)
    section = open_section(struct.pack("<" + HEADER_CODE, *header) + entry + rows + b"\x60", ADDRESS)
    message = rf"^\.sframe\+{HEADER_SIZE + V2.index_size + 3:#x}: FRE reaches past the end of the section"
    with pytest.raises(FormatError, match=message):
        section.rule_at(0x1004)


def test_a_function_that_claims_more_rows_than_there_are_bytes() -> None:
    """2 ** 32 - 1 rows of version 2, over 30,000 real ones: a look-up ends with the sub-section."""
    rows = b"".join(struct.pack("<HBb", start, 3, 8) for start in range(30_000))
    header = SframeHeader(0xDEE2, 2, 5, 3, 0, -8, 0, 1, 1, len(rows), 0, 20)
    entry = struct.pack("<iIIIBBH", 0x1000 - ADDRESS - HEADER_SIZE, 0xFFFFFFFF, 0, 0xFFFFFFFF, 1, 0, 0)
    section = open_section(struct.pack("<" + HEADER_CODE, *header) + entry + rows, ADDRESS)
    assert section.rule_at(0x1000 + 29_998) == RULES[0]
    assert section.seeker.scanned == 29_999
    for pc in (0x1000 + 30_000, 0x1000 + 0xFFFFFFFE):
        with pytest.raises(FormatError, match="FRE reaches past the end"):
            section.rule_at(pc)
    assert section.seeker.scanned < 4 * 30_000


def test_any_flipped_bit_gives_an_answer_or_one_error() -> None:
    data = small()
    pcs = sorted(agrees(data) | {0x1010})
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        with suppress(FormatError):
            section = open_section(data, ADDRESS)
            for pc in pcs:
                with suppress(FormatError):
                    section.look_up(pc)
        with suppress(FormatError):
            table = decode(data, ADDRESS).table
            if list(table.start) == sorted(table.start):
                agrees(data)
        data[bit // 8] ^= 1 << bit % 8


@given(st.binary(min_size=5, max_size=60), st.integers(0, 0xFFFF), st.sampled_from([V2, V3]))
def test_any_bytes_as_rows(fres: bytes, offset: int, layout: Layout) -> None:
    header = SframeHeader(0xDEE2, layout.version, 1, 3, 0, -8, 0, 1, 1, len(fres), 0, layout.index_size)
    entry = {
        V2: struct.pack("<iII", 0x1000 - ADDRESS, 0x10000, 0) + struct.pack("<I4s", fres[4], fres[:4]),
        V3: struct.pack("<qII", 0x1000 - ADDRESS, 0x10000, 0),
    }[layout]
    section = open_section(struct.pack("<" + HEADER_CODE, *header) + entry + fres, ADDRESS)
    with suppress(FormatError):
        found = section.look_up(0x1000 + offset)
        assert found is None or (found.start, found.size) == (0x1000, 0x10000)
    assert section.seeker.scanned <= len(fres) // 2
