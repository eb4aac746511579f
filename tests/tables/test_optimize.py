from __future__ import annotations

import subprocess
from array import array
from bisect import bisect_right
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sframegen import add_section, read
from sframegen.base.columns import zeros
from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.function_scan import fill_symbol_values
from sframegen.elf.records import PT, RECORDS, SHT, ByteOrder, Phdr, Sym
from sframegen.elf.symbols import sorted_functions
from sframegen.format.abi import ABIS, AMD64, Abi
from sframegen.format.decode import decode
from sframegen.format.encode import Encoder
from sframegen.format.layouts import WRITABLE, Layout
from sframegen.format.model import FunctionTable, Kind, Rule, Where
from sframegen.tables.levels import LEVELS, Level, LevelName
from sframegen.tables.optimize import Borders, find_followers, join_pieces
from tests.support.inputs.linker_inputs import Writer
from tests.support.loops import for_each
from tests.support.oracles.compare import compare
from tests.support.peers import Compiler, Peers
from tests.support.tables import edges, find, function_tables

ADDRESS = 0x3000
SMALL = Level(share=True, max_rows=4, max_span=600, rounds=2, min_body=24, longest_run=3)


FORMS = st.sampled_from([(abi, layout) for abi in ABIS for layout in WRITABLE.values()])


@pytest.mark.dear
@given(st.data(), FORMS, st.sampled_from([SMALL, *LEVELS.values()]))
def test_no_level_changes_a_rule(data: st.DataObject, form: tuple[Abi, Layout], level: Level) -> None:
    table = data.draw(function_tables(*form, max_functions=12))
    marks = bytes(
        f > 0 and table.kind[f] == table.kind[f - 1] and not table.kinds[table.kind[f]].mask
        and table.start[f] - table.start[f - 1] - table.size[f - 1] <= 15
        for f in range(len(table))
    )  # fmt: skip
    plain = Encoder(table, *form, share=level.share)
    encoder = join_pieces(table, plain, level, marks) if level.max_rows else plain
    joined = encoder.table
    section = decode(encoder.encode(ADDRESS), ADDRESS)
    for pc in edges(table):
        assert section.rule_at(pc) == find(section.table, pc) == find(table, pc), hex(pc)
    assert encoder.size_bytes <= plain.size_bytes
    for function in range(len(joined)):
        rows = joined.first_row[function + 1] - joined.first_row[function]
        start, size = joined.start[function], joined.size[function]
        within = bisect_right(table.start, start) - 1  # a part of one function has no more rows than that
        if start + size > table.start[within] + table.size[within]:
            assert rows <= level.max_rows
            assert size <= level.max_span


def test_what_is_no_smaller_is_not_joined() -> None:
    """The section stays byte for byte what it was."""
    table = FunctionTable(kinds=[Kind()], rules=[Rule(Where(AMD64.sp, 8), Where(None, -8, deref=True))])
    table.append(0x1000, 20, 0, [(0, 0)])
    encoder = Encoder(table, AMD64, share=True)
    for level in (LEVELS["fast"], LEVELS["size"]):
        assert join_pieces(table, encoder, level, bytes(1)) is encoder


def crowd(seed: int) -> tuple[FunctionTable, bytes]:
    """Functions from a small pool, some of them always side by side; which may share an FDE with the one before."""
    state = seed

    def below(limit: int) -> int:
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return (state >> 33) % limit

    table = FunctionTable(kinds=[Kind()], rules=[Rule(Where(AMD64.sp, 8 * n), Where(None, -8, deref=True)) for n in range(1, 40)])
    pool = [(8 + below(80), sorted({below(39) for _ in range(1 + below(8))})) for _ in range(12)]
    runs = [[below(12) for _ in range(1 + below(4))] for _ in range(8)]
    marks, at = bytearray(), 0x1000
    for _ in range(80):
        gap = (0, 0, 0, 4)[below(4)]
        for number in runs[below(8)]:
            size, rules = pool[number]
            marks.append(bool(marks) and below(8) > 0)
            table.append(at, size + 60, 0, [(row * (size // 8), rule) for row, rule in enumerate(rules)])
            at += size + 60 + gap
    return table, bytes(marks)


# For each seed: bytes without sharing neighbours, then of `fast`, of `size`, of three pieces side by side.
SIZES = {1: (3024, 2844, 2197, 2229), 2: (4541, 4541, 3630, 3703), 3: (3686, 3581, 2802, 2807), 4: (2075, 1976, 1635, 1677)}


@for_each("seed", SIZES)
def test_sections_stay_as_small_as_they_are(seed: int) -> None:
    table, marks = crowd(seed)
    plain = Encoder(table, AMD64, share=True)
    three = Level(share=True, max_rows=24, max_span=1200, rounds=2, min_body=24, longest_run=3)
    joined = [join_pieces(table, plain, level, marks) for level in (LEVELS["fast"], LEVELS["size"], three)]
    assert tuple(encoder.size_bytes for encoder in (plain, *joined)) == SIZES[seed]
    for encoder in joined:
        section = decode(encoder.encode(ADDRESS), ADDRESS)
        for pc in edges(table):
            assert section.rule_at(pc) == find(table, pc), hex(pc)


GAP = 8  # bytes between the functions of `code_with`


def code_with(gap: bytes) -> tuple[ElfFile, int, FunctionTable]:
    """A file with three functions of no-ops, `gap` between the first two, none between the others; its address, its functions."""
    writer = Writer("little", 1)
    content = b"\x90" * 16 + gap + b"\x90" * 33
    base = writer.put(".text", SHT.PROGBITS, 6, content, 0x100).sh_addr
    size = len(content)
    elf = ElfFile(memoryview(writer.finish([Phdr(PT.LOAD, 5, base, base, base, size, size, 0x100)])))
    table = FunctionTable(kinds=[Kind()], rules=[Rule(Where(AMD64.sp, 8), Where(None, -8, deref=True))])
    for start in (0, 16 + len(gap), 32 + len(gap)):
        table.append(base + start, 16, 0, [(0, 0)])
    return elf, base, table


@for_each(
    ("gap", "joined"),
    [
        (b"", True),
        (b"\x90" * 15, True),
        (b"\x90" * 16, False),
        (b"\xc3" + b"\x90" * 7, False),  # code, then no-ops
        (b"\x90" * 3 + b"\xc3" + b"\x90" * 4, False),
        (b"\x90" * 7 + b"\xc3", False),
        (b"\x90" * 7 + b"\x66", False),  # the no-op ends in the next function
        (b"\x90" * 3 + b"\x0f\x1f\x44\x00\x00", True),
    ],
)
def test_only_padding_is_joined_over(gap: bytes, joined: bool) -> None:
    elf, _, table = code_with(gap)
    assert list(find_followers(elf, table, Borders(zeros("Q", 0)))) == [0, joined, 1]


@for_each(("start", "end", "joined"), [(0, 1, [0, 0, 1]), (GAP - 2, GAP - 1, [0, 0, 1]), (GAP + 1, GAP + 15, [0, 1, 0])])
def test_code_of_ignored_fdes_is_not_joined_over(start: int, end: int, joined: list[int]) -> None:
    """`start`, `end`: after the first function."""
    elf, base, table = code_with(b"\x90" * GAP)
    ignored = [(base + 16 + start, base + 16 + end)]
    assert list(find_followers(elf, table, Borders(zeros("Q", 0), ignored=ignored))) == joined


@for_each(("place", "joined"), [(-1, [0, 1, 1]), (0, [0, 0, 1]), (GAP - 1, [0, 0, 1]), (GAP, [0, 1, 1])])
def test_no_place_that_has_a_name_or_is_left_out_is_joined_over(place: int, joined: list[int]) -> None:
    elf, base, table = code_with(b"\x90" * GAP)
    named, none = array("Q", [base, base + 4, base + 8, base + 16 + place]), zeros("Q", 0)  # the first three lie in functions
    assert list(find_followers(elf, table, Borders(named))) == list(find_followers(elf, table, Borders(none, named))) == joined


@for_each("order", ["little", "big"])
def test_names_are_of_defined_symbols_that_are_places(order: ByteOrder) -> None:
    """In sections 1, 256 and 257, not 0; of no type, data, functions, threads' data, but not of sections and files."""
    symbols = [
        Sym(1, kind, 0, section, 0x0102030405000000 + 256 * section + kind, 8) for section in (0, 1, 256, 257) for kind in range(7)
    ]
    values = zeros("Q", len(symbols))
    content = b"".join(RECORDS[Sym, order].pack(*symbol) for symbol in symbols)
    for tail in (0, 23):  # bytes of a symbol that is cut off
        count = fill_symbol_values(content + b"\1" * tail, order == "big", values)
        assert list(values[:count]) == [one.st_value for one in symbols if one.st_shndx and one.st_info not in (3, 4)]


# Each function with rows of its own: equal ones would rather share than join.
ASSEMBLY = """
    .macro function name offset
    \\name: .cfi_startproc
        push %rbp
        .cfi_def_cfa_offset \\offset
        .cfi_offset rbp, -16
        pop %rbp
        .cfi_def_cfa_offset 8
        ret
        .cfi_endproc
    .endm
    .text
    function one 16
    .nops 9
    function two 32
    int3; int3
    function three 48
    jmp *%rax
    function four 64
    nop
    symbol: nop
    function five 80
    .skip 16, 0x90
    function six 96
    nop
    .cfi_startproc
    .cfi_signal_frame
    seven: nop
    .cfi_endproc
"""


def starts(path: Path) -> list[str]:
    """Names of the functions that FDEs begin with."""
    names = {one.address: one.name for one in sorted_functions(open_elf(path))}
    found = read(path).table.start
    return [names.get(address, hex(address)) for address in found]


def test_only_padding_without_symbols_is_joined_over(compile_c: Compiler, peers: Peers, tmp_path: Path) -> None:
    names = ["one", "two", "three", "four", "five", "six", "seven"]
    types = "".join(f".type {name}, @function\n.globl {name}\n" for name in names)
    text = (types + ASSEMBLY).replace("\\", "\\\\").replace("\n", "\\n")
    source = f'__asm__("{text}");'
    library = compile_c(source, "-shared", "-nostdlib", "-fPIC", "-Wl,--build-id=none")
    results = {}
    for level in LEVELS:
        out = tmp_path / level
        add_section(library, output=out, optimize=level)
        results[level] = starts(out)
        assert compare(library, out, peers).ok
    assert results["none"] == names
    # jmp is code, `symbol` names a place, sixteen no-ops are too many, a signal frame is of another kind
    assert results["fast"] == results["size"] == ["one", "four", "five", "six", "seven"]


@for_each("level", LEVELS)
def test_rules_of_a_real_program_by_foreign_readers(level: LevelName, compile_c: Compiler, peers: Peers, tmp_path: Path) -> None:
    source = "#include <stdio.h>\n" + "".join(
        f"int f{n}(int n) {{ char b[n + {n}]; b[0] = n; return puts(b) + {n}; }}\n" for n in range(60)
    )
    program, out = compile_c(source + "int main(void) { return f3(1); }", "-O2", "-static"), tmp_path / level
    add_section(program, output=out, optimize=level)
    report = compare(program, out, peers)
    assert report.ok, str(report)
    assert subprocess.run([peers.tool("readelf"), "--sframe", out], check=True, capture_output=True).stderr == b""
