"""A table says at each address what a search in its functions says, made of functions here and of real files."""

from __future__ import annotations

import random
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sframegen import add_section
from sframegen.base.errors import FormatError
from sframegen.conversion.cfi_sections import find_sources
from sframegen.conversion.convert import convert_sources
from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.records import ET
from sframegen.format.abi import abi_of
from sframegen.format.locate import find_sframe, read_sframe
from sframegen.format.model import OUTERMOST, FdeType, FunctionTable, Kind, Rule, Where, look_up_in
from sframegen.profile.tables import decoded_table
from sframegen.profile.tables.decoded_table import (
    ELEMENT_SIZE,
    MAX_REPEATED,
    MAX_RULES,
    MAX_TEXT_BYTES,
    NO_RULE,
    RULE_BYTES,
    make_decoded_table,
    pack_rule,
)
from sframegen.profile.tables.make_table import Origin, make_table
from sframegen.stack.walking.step import RuleFlag
from tests.support.decoded_tables import DecodedRule, find_rule
from tests.support.zstandard import compress_section

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sframegen.format.layouts import FormatVersion
    from sframegen.format.model import Match

RA = Where(None, -8, deref=True)
PLAIN = [Rule(Where(7, 8 * n), RA) for n in range(1, 9)]
KINDS = [
    *(Kind(), Kind(mask=True, rep_size=16), Kind(mask=True, rep_size=1), Kind(signal=True), Kind(mask=True)),
    *(Kind(rep_size=16), Kind(FdeType.FLEX), Kind(mask=True, rep_size=255, signal=True)),
]


@st.composite
def any_tables(draw: st.DrawFn) -> FunctionTable:
    """Functions in any order, with overlaps, without bytes, without rows, with rows past their ends."""
    table = FunctionTable(kinds=KINDS, rules=PLAIN)
    for _ in range(draw(st.integers(0, 8))):
        starts = st.sampled_from([0x1000, 0x10FF, 0x1100, 0x1101, 0x1200, 0x1FF]) | st.integers(0x1000, 0x1400)
        offsets = draw(st.sets(st.integers(1, 40), max_size=4))
        rows = [(offset, draw(st.integers(0, 7))) for offset in sorted({0} | offsets)] if draw(st.booleans()) else []
        table.append(draw(starts), draw(st.integers(0, 0x300)), draw(st.integers(0, len(KINDS) - 1)), rows)
    return table


def expected(table: FunctionTable, pc: int) -> DecodedRule | None:
    found = look_up_in(table, pc)
    packed = found and pack_rule(found.rule, signal=found.kind.signal)
    if not packed or packed == NO_RULE:
        return None
    return DecodedRule(*RULE_BYTES.unpack(packed))


def agrees_with(table: FunctionTable, pcs: Iterable[int]) -> None:
    ordered = table.select(sorted(range(len(table)), key=table.start.__getitem__))
    made = make_decoded_table(table)
    assert {pc: find_rule(made, pc) for pc in pcs} == {pc: expected(ordered, pc) for pc in pcs}


@given(any_tables())
def test_functions_in_any_order_and_one_upon_another(table: FunctionTable) -> None:
    agrees_with(table, range(0xFF0, 0x1800))


def test_neighbours_with_equal_rules_are_one_row() -> None:
    table = FunctionTable(kinds=KINDS, rules=[*PLAIN, PLAIN[0]._replace(ra_signed=True)])
    table.append(0x1000, 16, 0, [(0, 0), (4, 8)])
    table.append(0x1010, 16, 1, [(0, 0)])
    table.append(0x1030, 16, 0, [(0, 0)])
    assert make_decoded_table(table).rows == 4  # a rule, a gap, the rule, the end


def test_what_a_rule_is_in_the_table() -> None:
    cases: list[tuple[Rule, tuple[int, ...]]] = [
        (OUTERMOST, (0, 0, 0, 0, 0, 0, RuleFlag.OUTERMOST)),
        (Rule(Where(7, 16), RA), (16, -8, 0, 7, 0, 0, RuleFlag.RA_DEREF)),
        (Rule(Where(31, 0)), (0, 0, 0, 31, 30, 0, RuleFlag.RA_REGISTER)),
        (
            Rule(Where(10, -8, deref=True), RA, Where(6, 0, deref=True)),
            (-8, -8, 0, 10, 0, 6, RuleFlag.CFA_DEREF | RuleFlag.RA_DEREF | RuleFlag.FP | RuleFlag.FP_REGISTER | RuleFlag.FP_DEREF),
        ),
        (
            Rule(Where(7, 8), Where(2, 5, deref=True), Where(None, -16, deref=True)),
            (8, 5, -16, 7, 2, 0, RuleFlag.RA_REGISTER | RuleFlag.RA_DEREF | RuleFlag.FP | RuleFlag.FP_DEREF),
        ),
    ]
    wrong = {}
    for rule, said in cases:
        table = FunctionTable(kinds=KINDS, rules=[rule])
        table.append(0x1000, 16, 0, [(0, 0)])
        plain = find_rule(make_decoded_table(table), 0x1005)
        table.kind[0] = 3
        of_signal = find_rule(make_decoded_table(table), 0x1005)
        if (plain, of_signal) != (said, (*said[:6], said[6] | RuleFlag.SIGNAL)):
            wrong[rule] = plain, of_signal
    assert wrong == {}


@pytest.mark.parametrize("where", [Where(7, 1 << 31), Where(7, -(1 << 31) - 1), Where(256, 0)])
def test_what_16_bytes_cannot_say_has_no_rule_and_is_counted(where: Where) -> None:
    table = FunctionTable(kinds=KINDS, rules=[PLAIN[0], Rule(where, RA)])
    table.append(0x1000, 16, 0, [(0, 0), (8, 1)])
    made = make_decoded_table(table)
    assert made.left_out == 1
    assert (find_rule(made, 0x1007) is None, find_rule(made, 0x1008)) == (False, None)


def test_more_rules_than_numbers() -> None:
    rules = [Rule(Where(7, 8 * n), RA) for n in range(MAX_RULES + 10)]
    table = FunctionTable(kinds=KINDS, rules=rules)
    table.append(0x1000, len(rules), 0, [(n, n) for n in range(len(rules))])
    made = make_decoded_table(table)
    assert made.rules == MAX_RULES
    assert made.left_out == len(rules) + 3 - MAX_RULES  # no rule, and the outermost frame with and without signal
    assert find_rule(made, 0x1000 + len(rules) - 1) is None
    assert find_rule(made, 0x1000 + MAX_RULES - 4) is not None  # the last that has a number


def test_a_row_that_repeats_4_billion_times() -> None:
    table = FunctionTable(kinds=KINDS, rules=PLAIN)
    table.append(0x1000, 16, 0, [(0, 0)])
    table.append(0x1010, 0xFFFFFFFF, 2, [(0, 1)])
    table.append(0x1010 + MAX_REPEATED, 16, 0, [(0, 2)])
    made = make_decoded_table(table)
    assert made.left_out == 1
    assert len(made.data) < 1 << 20
    agrees_with(table, [0x1000, 0x1010 + MAX_REPEATED])
    assert find_rule(made, 0x1010) is None


def test_functions_that_are_too_far_away() -> None:
    table = FunctionTable(kinds=KINDS, rules=PLAIN)
    for start in (0x1000, 0x1000 + MAX_TEXT_BYTES, 1 << 63, (1 << 64) - 8):
        table.append(start, 16, 0, [(0, 0)])
    made = make_decoded_table(table)
    assert made.left_out == 3
    assert len(made.data) < ELEMENT_SIZE * 100
    assert find_rule(made, 0x1008) is not None
    assert find_rule(made, (1 << 64) - 8) is None


NAMES = ("libc.so.6", "libcrypto.so.3", "libstdc++.so.6")
FILES = [Path("/usr/bin/bash"), *(next(Path("/usr/lib").glob(f"*-linux-gnu/{name}")) for name in NAMES)]
PCS = 4000


def pcs_of(elf: ElfFile) -> list[int]:
    numbers = random.Random(19)
    ranges = elf.executable_ranges()
    return [numbers.randrange(max(0, start - 64), end + 64) for start, end in numbers.choices(ranges, k=PCS)]


def agrees(elf: ElfFile, origin: Origin, look_up: Callable[[int], Match | None]) -> None:
    made = make_table(elf)
    assert (made.origin, made.why) == (origin, "")
    assert made.table is not None
    assert made.table.left_out == 0
    covered = 0
    for pc in pcs_of(elf):
        found, rule = look_up(pc), find_rule(made.table, pc)
        if rule and rule.flags & RuleFlag.CFA_DEREF and rule.ra_register:  # no section says that: corrected_rules.py
            assert found is None
            continue
        expected = pack_rule(found.rule, signal=found.kind.signal) if found else NO_RULE
        assert (RULE_BYTES.pack(*rule) if rule else NO_RULE) == expected, hex(pc)
        covered += rule is not None
    assert covered > PCS / 2


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_converted(file: Path) -> None:
    elf = open_elf(file)
    table = convert_sources(find_sources(elf), elf.executable_ranges(), abi_of(elf)).table
    agrees(elf, Origin.CONVERTED, lambda pc: look_up_in(table, pc))


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_from_the_section(file: Path, version: FormatVersion, tmp_path: Path) -> None:
    add_section(file, output=tmp_path / "added", version=version, verify=False)
    elf = open_elf(tmp_path / "added")
    agrees(elf, Origin.SECTION, read_sframe(elf).look_up)


@pytest.fixture
def python(copied: Callable[[str], Path]) -> Path:
    return copied(sys.executable)


@pytest.fixture
def added(python: Path, tmp_path: Path) -> Path:
    add_section(python, output=tmp_path / "added", verify=False)
    return tmp_path / "added"


@pytest.mark.parametrize(
    ("at", "value", "why"),
    [
        (2, 9, ".sframe+0x2: unknown version of the format: 9"),
        (4, 2, ".sframe+0x5: fixed offsets of FP and RA are not those of the ABI"),
    ],
)
def test_a_damaged_section_is_not_used(python: Path, added: Path, at: int, value: int, why: str) -> None:
    data = bytearray(added.read_bytes())
    elf = ElfFile(memoryview(data), "added")
    found = find_sframe(elf)
    assert found is not None
    data[data.index(found[0]) + at] = value
    made = make_table(elf)
    assert made.origin is Origin.CONVERTED
    assert made.why.startswith(f"added: {why}")
    assert made.why.endswith("; not used")
    assert made.table == make_table(open_elf(python)).table


def test_files_of_other_kinds() -> None:
    for at, value, why in (
        (18, 0, "e_machine 0 (little-endian) is not supported, only AMD64, AArch64, AArch64 big-endian, s390x"),
        (16, ET.REL, "not a program or library for x86-64 or AArch64"),
    ):
        data = bytearray(open_elf(FILES[0]).data)
        data[at] = value
        assert make_table(ElfFile(memoryview(data), "other")) == (None, Origin.NOTHING, f"other: {why}")


def test_call_frame_information_of_nothing() -> None:
    data = bytearray(open_elf(FILES[0]).data)
    elf = ElfFile(memoryview(data), "file")
    section = elf.section(".eh_frame")
    assert section is not None
    start, size = section.header.sh_offset, section.header.sh_size
    data[start : start + size] = bytes(size)
    assert make_table(elf) == (None, Origin.NOTHING, "")
    data[start : start + size] = b"\x77" * size
    made = make_table(elf)
    assert made[:2] == (None, Origin.NOTHING)
    assert made.why.startswith("file: .eh_frame+0x0: ")


def test_what_a_table_cannot_hold_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoded_table, "MAX_TEXT_BYTES", 1 << 12)
    made = make_table(open_elf(FILES[0]))
    assert made.table is not None
    assert made.why == f"{FILES[0]}: does not fit into its table: {made.table.left_out:,} functions and rules"


def test_any_flipped_bit_gives_a_table_or_a_reason(added: Path) -> None:
    original = added.read_bytes()
    data = bytearray(original)
    elf = open_elf(added)
    numbers = random.Random(4)
    sections = [section.header for section in elf.sections if section.name in (".sframe", ".eh_frame", ".note.gnu.build-id")]
    places = [(0, 1 << 10), *((header.sh_offset, header.sh_size) for header in sections)]
    origins = set()
    for _ in range(150):
        start, size = numbers.choice(places)
        at = start + numbers.randrange(min(size, 1 << numbers.randrange(5, 24)))
        data[at] ^= 1 << numbers.randrange(8)
        with suppress(FormatError):
            made = make_table(ElfFile(memoryview(data), "flipped"))
            origins.add(made.origin)
            assert made.origin is Origin.SECTION or made.why or made.table, at
            for pc in pcs_of(elf)[:50]:
                _ = made.table and find_rule(made.table, pc)
        data[at] = original[at]
    assert origins >= {Origin.SECTION, Origin.CONVERTED}


@pytest.mark.parametrize("is_compressed", [False, True])
def test_a_section_that_no_segment_has(tmp_path: Path, is_compressed: bool) -> None:
    add_section(FILES[0], output=tmp_path / "added", verify=False, unloaded=True)
    if is_compressed:
        compress_section(tmp_path / "added")
    elf = open_elf(tmp_path / "added")
    agrees(elf, Origin.SECTION, read_sframe(elf).look_up)
