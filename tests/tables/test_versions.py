"""Versions 1 and 2 say what version 3 says: sections of every producer, and conversions between versions."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from itertools import groupby, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sframegen
from sframegen.cli.shared.section_text import dump_text
from sframegen.elf.file import open_elf
from sframegen.elf.symbols import sorted_functions
from sframegen.format.abi import ABIS, AMD64, S390X, Abi
from sframegen.format.decode import decode
from sframegen.format.encode import Encoder
from sframegen.format.layouts import HEADER_SIZE, V2, V3, Layout
from sframegen.format.locate import read_sframe
from sframegen.format.model import OUTERMOST, FdeType, FunctionTable, Kind, Rule, Where
from sframegen.format.words import Reason, encode_rule
from sframegen.tables.compare import find_difference
from sframegen.tables.lower import lower_table
from tests.support import producers
from tests.support.inputs.sframe_files import write_sframe_elf
from tests.support.loops import for_each
from tests.support.peers import Compiler, Peers
from tests.support.producers import GNU, X86_64, Producer
from tests.support.tables import content, find, function_tables

ADDRESS = 0x3000
SP, FP, RA = AMD64.sp, AMD64.fp, Where(None, -8, deref=True)
PLAIN = Rule(Where(SP, 8), RA)
DRAP = Rule(Where(10, 0), RA, Where(FP, 0, deref=True))


def table_of(*functions: tuple[int, int, Kind, list[tuple[int, Rule]]]) -> FunctionTable:
    """Of (start, size, kind, rows)."""
    numbers: dict[Rule, int] = {}
    table = FunctionTable(kinds=[kind for _, _, kind, _ in functions])
    for number, (start, size, _, rows) in enumerate(functions):
        table.append(start, size, number, [(offset, numbers.setdefault(rule, len(numbers))) for offset, rule in rows])
    table.rules = list(numbers)
    return table


def recoded(table: FunctionTable, abi: Abi, layout: Layout) -> tuple[FunctionTable, dict[Reason, int]]:
    """Lowered, written and read again."""
    lowered, lost = lower_table(table, abi, layout)
    return decode(Encoder(lowered, abi, layout).encode(ADDRESS), ADDRESS).table, lost


# -- producers


def rules_by_function(file: Path) -> dict[str, list[tuple[Rule | None, bool]]]:
    """What is said at each byte of each of the file's functions, and of what lies outside of them, as the PLT."""
    elf = open_elf(file)
    table = read_sframe(elf).table
    kinds = {start: table.kinds[kind] for start, kind in zip(table.start, table.kind, strict=True)}
    names = {symbol.address: (symbol.name, symbol.size) for symbol in sorted_functions(elf)}
    for start, size in zip(table.start, table.size, strict=True):
        section = next(s for s in elf.sections if s.header.sh_addr <= start < s.header.sh_addr + s.header.sh_size)
        names.setdefault(start, (f"{section.name}+{start - section.header.sh_addr:#x}", size))
    return {
        name: [(find(table, address + at), kinds[address].key_b if address in kinds else False) for at in range(size)]
        for address, (name, size) in names.items()
    }


def agree(source: str, makers: tuple[Producer, ...], directory: Path, peers: Peers) -> dict[str, list[tuple[Rule | None, bool]]]:
    """What all of them say of a source's functions; GNU's linkers make a PLT that is alike."""
    said = {}
    for maker in makers:
        file = maker.link(source, directory / maker.name.replace(" ", "-"), peers)
        section = read_sframe(open_elf(file))
        assert (section.header.version, section.header.flags) == (maker.version, maker.flags)
        raised, lost = recoded(section.table, section.abi, V3)
        assert (find_difference(section.table, raised), find_difference(raised, section.table), lost) == ((None, 0), (None, 0), {})
        said[maker.name] = rules_by_function(file)
    reference = said[GNU[-1].name]
    in_text = {name for name in reference if not name.startswith(".plt")}
    for maker in makers:
        expected = reference if maker in GNU else {name: reference[name] for name in in_text}
        assert said[maker.name] == expected, maker.name
    return reference


@for_each("flags", producers.C_FLAGS)
def test_all_producers_say_the_same_of_compiled_code(flags: str, compile_c: Compiler, peers: Peers, tmp_path: Path) -> None:
    source = compile_c(producers.PROGRAM, "-S", "-fPIC", *producers.C_FLAGS[flags], name="program.s").read_text()
    reference = agree(source, X86_64, tmp_path, peers)
    assert {"on_stack", "large_frame", "many", "cold", "back", "choose"} <= set(reference)
    assert any(name.startswith(".plt") for name in reference)
    rules = {rule for said in reference.values() for rule, _ in said}
    assert None not in rules
    assert len(rules) > 5
    assert {rule.cfa.register for rule in rules if rule and rule.cfa} == {SP, FP}
    assert any(rule and rule.fp for rule in rules)


def test_all_producers_say_the_same_of_rows_of_every_width(peers: Peers, tmp_path: Path) -> None:
    reference = agree(producers.ROWS_X86_64, X86_64, tmp_path, peers)
    assert len(reference) == 6
    assert len(reference["long"]) == 66302
    offsets = {rule.cfa.offset for said in reference.values() for rule, _ in said if rule and rule.cfa}
    assert offsets == {8, 16, 24, 32, 40000, 8000000}


def test_rows_at_a_function_s_end_hold_nowhere(peers: Peers, tmp_path: Path) -> None:
    """GNU as writes one for a last directive, and for a function without code; linkers before 2.47 stop at an assertion."""
    bodies = {"last": "nop; .def_cfa_offset 16", "none": ".def_cfa_offset 24", "next": "nop"}
    source = producers.functions(**bodies).replace("\t.p2align 4\n", "")
    table = read_sframe(open_elf(GNU[-1].link(source, tmp_path / "library", peers))).table
    assert [size in {offset for offset, _ in table.rows(n)} for n, size in enumerate(table.size)] == [True, True, False]
    again, lost = recoded(table, AMD64, V3)
    assert (find_difference(table, again), lost) == ((None, 0), {})
    assert {find(again, start + offset) for start, size in zip(table.start, table.size, strict=True) for offset in range(size)} == {
        PLAIN
    }


@for_each("makers", [producers.AARCH64, producers.AARCH64_BE], ids=["little", "big"])
def test_both_byte_orders_of_aarch64(makers: tuple[Producer, ...], peers: Peers, tmp_path: Path) -> None:
    reference = agree(producers.ROWS_AARCH64, makers, tmp_path, peers)
    assert {key_b for _, key_b in reference["key_b"]} == {True}
    assert [rule and rule.ra_signed for rule, _ in reference["signs"][::4]] == [False, True, True, False]
    assert {rule and rule.ra for rule, _ in reference["leaf"]} == {None}


@for_each("makers", [GNU, producers.AARCH64, producers.AARCH64_BE], ids=["x86-64", "AArch64", "AArch64 BE"])
def test_version_1_is_dumped_as_its_own_readelf_prints_it(makers: tuple[Producer, ...], peers: Peers, tmp_path: Path) -> None:
    """readelf 2.47 reads no version 1. That of 2.40 prints no fixed offsets."""
    source = producers.ROWS_X86_64 if makers is GNU else producers.ROWS_AARCH64
    file = makers[0].link(source, tmp_path / "library", peers)
    printed = subprocess.run(
        [makers[0].tool("readelf", peers), "--sframe", file], check=True, capture_output=True, text=True
    ).stdout
    ours = "".join(dump_text(read_sframe(open_elf(file))))
    if makers is GNU:
        ours = re.sub(r"(?m)^    CFA fixed RA offset: -8\n", "", ours)
        ours = re.sub(r"(?m)f( {12})$", r"u\1", ours)
    assert "func idx [3]" in ours
    assert ours.rstrip("\n").splitlines() == printed.rstrip("\n").splitlines()


# -- from one version to another


@pytest.mark.dear
@settings(max_examples=50)
@given(st.data(), st.sampled_from(ABIS), st.sampled_from([V2, V3]), st.sampled_from([V2, V3]))
def test_lowering_keeps_what_can_be_said_and_counts_the_rest(data: st.DataObject, abi: Abi, source: Layout, target: Layout) -> None:
    table = data.draw(function_tables(abi, source))
    again, lost = recoded(table, abi, target)
    assert find_difference(table, again) == (None, sum(lost.values()))
    for address in {at + near for at in again.start for near in (-1, 0, 1, 5, 100)} | {at - 1 for at in ends(again)}:
        rule = find(again, address)
        assert rule is None or rule == find(table, address)
    if target is V3:
        assert not lost
    else:
        assert set(lost) <= {Reason.FLEX, Reason.SIGNAL, Reason.OUTERMOST}


@pytest.mark.once
@pytest.mark.parametrize("name", ["libc", "arm64-libc", "s390x-libc"])
def test_real_libraries_go_down_and_up_again(name: str, corpus_file: Callable[[str], Path], tmp_path: Path) -> None:
    """What version 3 covers as outermost and signal frames (`clone3`, `__restore_rt`) is left out, whichever way it is made."""
    file, two = tmp_path / "library", tmp_path / "two"
    covered = sframegen.add_section(corpus_file(name), output=file, verify=False, optimize="none").fates["covered"]
    added = sframegen.add_section(corpus_file(name), output=two, version=2, verify=False)
    before = read_sframe(open_elf(file))
    change = sframegen.convert(file, 2, optimize="none")
    lowered = read_sframe(open_elf(file))
    lost = sum(change.left_out.values())
    assert find_difference(before.table, lowered.table) == (None, lost)
    assert lost < 1000
    raised, left_out = recoded(lowered.table, lowered.abi, V3)
    assert (find_difference(lowered.table, raised), find_difference(raised, lowered.table), left_out) == ((None, 0), (None, 0), {})
    assert covered["outermost"] > 0
    for without in (added.fates["left_out"], change.left_out):
        assert without[Reason.OUTERMOST.value] == covered["outermost"]
        assert without.get(Reason.SIGNAL.value, 0) == covered["signal"]
    for each in (file, two):
        assert OUTERMOST not in read_sframe(open_elf(each)).table.rules
        assert [found for found in sframegen.check(each, consumer="glibc").findings if found.severity] == []


def ends(table: FunctionTable) -> list[int]:
    return [start + size for start, size in zip(table.start, table.size, strict=True)]


def test_only_the_rows_that_need_it_are_left_out() -> None:
    flex, signal = Kind(FdeType.FLEX), Kind(signal=True)
    table = table_of(
        (0x1000, 100, flex, [(0, PLAIN), (10, DRAP), (60, PLAIN)]),
        (0x2000, 30, signal, [(0, PLAIN)]),
        (0x3000, 40, flex, [(0, PLAIN), (20, PLAIN._replace(cfa=Where(SP, 16)))]),
    )
    lowered, lost = lower_table(table, AMD64, V2)
    assert content(lowered) == [
        (0x1000, 10, Kind(), [(0, PLAIN)]),
        (0x103C, 40, Kind(), [(0, PLAIN)]),
        (0x3000, 40, Kind(), [(0, PLAIN), (20, PLAIN._replace(cfa=Where(SP, 16)))]),
    ]
    assert lost == {Reason.FLEX: 50, Reason.SIGNAL: 30}
    raised, lost = lower_table(table, AMD64, V3)
    assert not lost
    assert find_difference(table, raised) == (None, 0)


def test_outermost_frames_are_left_out_of_version_2() -> None:
    table = table_of(
        (0x1000, 20, Kind(), [(0, OUTERMOST)]),
        (0x2000, 30, Kind(), [(0, PLAIN), (10, OUTERMOST), (25, PLAIN)]),
        (0x3000, 8, Kind(), []),
        (0x4000, 32, Kind(rep_size=16, mask=True), [(0, PLAIN), (4, OUTERMOST)]),
    )
    lowered, lost = lower_table(table, AMD64, V2)
    assert content(lowered) == [(0x2000, 10, Kind(), [(0, PLAIN)]), (0x2019, 5, Kind(), [(0, PLAIN)])]
    assert lost == {Reason.OUTERMOST: 20 + 15 + 8 + 32}
    assert find_difference(table, lowered) == (None, 75)


def test_registers_of_s390x_become_flexible_rows_and_come_back() -> None:
    in_registers = Rule(Where(15, 160), Where(17, 0), Where(16, 0))
    table = table_of((0x1000, 100, Kind(), [(0, Rule(Where(15, 160))), (6, in_registers), (90, Rule(Where(15, 160)))]))
    raised, lost = recoded(table, S390X, V3)
    assert not lost
    assert find_difference(table, raised) == (None, 0)
    assert FdeType.FLEX in {raised.kinds[kind].fde_type for kind in raised.kind}
    again, lost = recoded(raised, S390X, V2)
    assert not lost
    assert find_difference(table, again) == (None, 0)


def test_repeated_blocks_are_kept_or_left_out_whole() -> None:
    repeated = Kind(rep_size=16, mask=True)
    kept = (0x1000, 64, repeated, [(0, PLAIN), (11, PLAIN._replace(cfa=Where(SP, 16)))])
    table = table_of(kept, (0x2000, 32, repeated._replace(fde_type=FdeType.FLEX), [(0, PLAIN), (4, DRAP)]))
    lowered, lost = lower_table(table, AMD64, V2)
    assert (content(lowered), lost) == ([kept], {Reason.FLEX: 32})
    assert content(recoded(table, AMD64, V3)[0]) == content(table)


def test_a_function_without_rows_gets_the_row_that_it_means() -> None:
    table = table_of((0x1000, 16, Kind(), []), (0x2000, 16, Kind(FdeType.FLEX), []))
    lowered, lost = lower_table(table, AMD64, V3)
    assert (content(lowered), lost) == ([(0x1000, 16, Kind(), [(0, OUTERMOST)])], {})
    assert find_difference(table, lowered) == (None, 0)


SAID_SHORT = [Rule(Where(SP, 296 + 8 * n), RA, Where(None, -300, deref=True)) for n in range(2)]
ONLY_FLEX = [DRAP, DRAP._replace(cfa=Where(10, 300))]


@given(st.lists(st.tuples(st.sampled_from([SAID_SHORT, ONLY_FLEX]), st.integers(1, 14), st.integers(1, 9)), min_size=1, max_size=7))
def test_flexible_functions_are_cut_where_that_is_smallest(parts: list[tuple[list[Rule], int, int]]) -> None:
    """A part is (two rules, number of rows, bytes of each row): its rows have the two rules in turn."""
    rows: list[tuple[int, Rule]] = []
    end = 0
    for rules, count, length in parts:
        for number in range(count):
            rows.append((end, rules[number % 2]))
            end += length
    function = (0x1000, end, Kind(FdeType.FLEX), rows)
    others = [
        (0x800, 40, Kind(), [(0, PLAIN), (20, SAID_SHORT[0])]),
        (0x9000, 64, Kind(FdeType.FLEX), [(0, DRAP), (30, ONLY_FLEX[1])]),
    ]
    table = table_of(others[0], function, others[1])
    lowered, lost = lower_table(table, AMD64, V3)
    assert not lost
    assert find_difference(table, lowered) == (None, 0)
    assert (content(lowered)[0], content(lowered)[-1]) == (others[0], others[1])

    cost = V3.index_size + V3.attribute_size  # of a function
    best = dict.fromkeys(FdeType, cost)  # bytes up to a row that has that type
    for rule in (rule for rule, _ in groupby(rule for _, rule in rows)):
        sizes = {fde_type: len(encode_rule(rule, fde_type, AMD64, V3) or bytes(1 << 20)) + 1 for fde_type in FdeType}
        best = {one: min(best[one], best[other] + cost) + sizes[one] for one, other in zip(FdeType, reversed(FdeType), strict=True)}
    alone = lower_table(table_of(function), AMD64, V3)[0]
    wide_starts = sum((alone.row_start[last - 1] > 0xFF) * (last - first) for first, last in pairwise(alone.first_row))
    assert Encoder(alone, AMD64, V3).size_bytes == HEADER_SIZE + min(best.values()) + wide_starts


def test_what_no_search_finds_is_not_carried_over() -> None:
    other = PLAIN._replace(cfa=Where(SP, 16))
    table = table_of(
        (0x3000, 16, Kind(), [(0, PLAIN)]),
        (0x1000, 0x100, Kind(), [(0, PLAIN), (0x10, other), (0x50, PLAIN)]),
        (0x1040, 16, Kind(), [(0, other)]),
        (0x1040, 8, Kind(), [(0, PLAIN), (4, PLAIN)]),
        (0x1080, 0, Kind(), []),
        (0x4000, 0x20, Kind(), [(0, PLAIN), (0x10, other)]),  # the second row begins where the next function does
        (0x4010, 16, Kind(), [(0, PLAIN)]),
    )
    lowered, lost = lower_table(table, AMD64, V3)
    assert content(lowered) == [
        (0x1000, 0x40, Kind(), [(0, PLAIN), (0x10, other)]),
        (0x1040, 8, Kind(), [(0, PLAIN)]),
        (0x3000, 16, Kind(), [(0, PLAIN)]),
        (0x4000, 16, Kind(), [(0, PLAIN)]),
        (0x4010, 16, Kind(), [(0, PLAIN)]),
    ]
    assert not lost


def test_a_search_finds_a_function_up_to_the_next_one() -> None:
    """Or up to its end, or the last address; of several at one place the last."""
    table = FunctionTable(kinds=[Kind()], rules=[PLAIN])
    for start, size in (((1 << 64) - 8, 16), (0x100, 0x10), (0x100, 0x30), (0x120, 8), (0x200, 0)):
        table.append(start, size, 0, [(0, 0)])
    assert list(table.searchable_ranges()) == [(2, 0x100, 0x120), (3, 0x120, 0x128), (0, (1 << 64) - 8, 1 << 64)]


def test_functions_of_more_rows_than_version_3_counts_are_cut() -> None:
    rules = [PLAIN, PLAIN._replace(cfa=Where(SP, 16))]
    count = 0x10000 + 5
    table = table_of((0x1000, count, Kind(), [(at, rules[at % 2]) for at in range(count)]))
    again, lost = recoded(table, AMD64, V3)
    assert list(again.size) == [0xFFFF, 6]
    assert (find_difference(table, again), lost) == ((None, 0), {})


# -- version 2 by GNU's eyes


@for_each("abi", ABIS, ids=lambda abi: abi.name)
def test_readelf_prints_our_version_2_as_we_do(abi: Abi, peers: Peers, tmp_path: Path) -> None:
    """No one else writes version 2 for s390x."""
    base, saved = abi.cfa_adjustment, Where(None, -48, deref=True)
    fixed = Where(None, abi.fixed_ra_offset, deref=True) if abi.fixed_ra_offset else None
    rules = [Rule(Where(abi.sp, base), fixed), Rule(Where(abi.fp, base + 4096), fixed or saved, Where(None, -56, deref=True))]
    if abi.registers_as_offsets:
        rules += [Rule(Where(abi.sp, base), None, Where(16, 0)), Rule(Where(abi.sp, base), Where(17, 0), Where(31, 0))]
        rules += [Rule(Where(abi.sp, base), Where(11, 0)), Rule(Where(abi.sp, base + 8 * 70000), None, saved)]
    table = table_of((0x1000, 400, Kind(), [(10 * n, rule) for n, rule in enumerate(rules)]), (0x2000, 8, Kind(), [(0, rules[0])]))
    section = bytes(Encoder(table, abi, V2).encode(ADDRESS))
    file = write_sframe_elf(tmp_path / "file", section, abi, ADDRESS)
    printed = subprocess.run([peers.tool("readelf"), "--sframe", file], check=True, capture_output=True, text=True)
    assert printed.stderr == ""
    ours = "".join(dump_text(decode(section, ADDRESS)))
    assert "Version: SFRAME_VERSION_2" in ours
    assert ours.splitlines() == printed.stdout.splitlines()
    assert find_difference(table, recoded(decode(section, ADDRESS).table, abi, V3)[0]) == (None, 0)
