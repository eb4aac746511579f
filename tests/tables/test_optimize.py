from __future__ import annotations

import subprocess
from bisect import bisect_right
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sframegen import add_section, read
from sframegen.elf.file import open_elf
from sframegen.elf.symbols import function_symbols
from sframegen.format.abi import ABIS, AMD64
from sframegen.format.decode import decode
from sframegen.format.encode import Encoder
from sframegen.format.layouts import WRITABLE
from sframegen.format.model import FunctionTable, Kind, Rule, Where
from sframegen.tables.optimize import LEVELS, Level, join
from tests.support.oracles.compare import compare
from tests.support.tables import edges, find, function_tables

if TYPE_CHECKING:
    from pathlib import Path

    from sframegen.format.abi import Abi
    from sframegen.format.layouts import Layout
    from sframegen.tables.optimize import LevelName
    from tests.support.peers import Compiler, Peers

ADDRESS = 0x3000
SMALL = Level(share=True, max_rows=4, max_span=600, rounds=2, body=24, longest=3)


FORMS = st.sampled_from([(abi, layout) for abi in ABIS for layout in WRITABLE.values()])


@given(st.data(), FORMS, st.sampled_from([SMALL, *LEVELS.values()]))
def test_no_level_changes_a_rule(data: st.DataObject, form: tuple[Abi, Layout], level: Level) -> None:
    table = data.draw(function_tables(*form, max_functions=12))
    marks = bytes(
        f > 0 and table.kind[f] == table.kind[f - 1] and not table.kinds[table.kind[f]].mask
        and table.start[f] - table.start[f - 1] - table.size[f - 1] <= 15
        for f in range(len(table))
    )  # fmt: skip
    plain = Encoder(table, *form, share=level.share)
    encoder = join(table, plain, level, marks) if level.max_rows else plain
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


def test_functions_with_bodies_of_different_lengths_are_cut_to_have_rows_in_common() -> None:
    """Prologues and epilogues are equal; nothing joins them."""
    rules = [Rule(Where(AMD64.sp, 8 * n), Where(None, -8, deref=True)) for n in range(1, 9)]
    table = FunctionTable(kinds=[Kind()], rules=rules)
    for n in range(5):
        body = 40 + 7 * n
        prologue = [(2 * rule, rule) for rule in range(8)]
        table.append(0x1000 * (n + 1), body + 40, 0, [*prologue, *((body + 2 * rule, 7 - rule) for rule in range(1, 8))])
    plain = Encoder(table, AMD64, share=True)
    cut = join(table, plain, LEVELS["fast"], bytes(len(table)))
    assert (len(plain.table), plain.stored_rows) == (5, 75)
    assert (len(cut.table), cut.stored_rows) == (10, 8 + 7)
    section = decode(cut.encode(ADDRESS), ADDRESS)
    for pc in edges(table):
        assert section.rule_at(pc) == find(table, pc), hex(pc)


def test_neighbours_that_are_repeated_together_share_an_fde_and_their_rows() -> None:
    """Alone, each of the two has its rows in common with the others like it; together they save an index entry each time."""
    rules = [Rule(Where(AMD64.sp, 8 * n), Where(None, -8, deref=True)) for n in range(1, 25)]
    table = FunctionTable(kinds=[Kind()], rules=rules)
    for n in range(6):
        table.append(0x1000 * n, 24, 0, [(2 * row, row) for row in range(12)])
        table.append(0x1000 * n + 24, 24, 0, [(2 * row, 12 + row) for row in range(12)])
    plain = Encoder(table, AMD64, share=True)
    joined = join(table, plain, LEVELS["size"], bytes([0, 1]) * 6)
    apart = join(table, plain, LEVELS["size"]._replace(longest=1), bytes([0, 1]) * 6)
    assert (len(apart.table), apart.stored_rows) == (12, 24)
    assert (len(joined.table), joined.stored_rows) == (6, 24)
    section = decode(joined.encode(ADDRESS), ADDRESS)
    for pc in edges(table):
        assert section.rule_at(pc) == find(table, pc), hex(pc)


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
    names = {one.address: one.name for one in function_symbols(open_elf(path))}
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
    assert results["none"] == results["share"] == names
    # jmp is code, `symbol` names a place, sixteen no-ops are too many, a signal frame is of another kind
    assert results["fast"] == results["size"] == ["one", "four", "five", "six", "seven"]


LEFT_OUT = """
    .text
    .globl whole
    .type whole, @function
    whole: .cfi_startproc
        nop
        .cfi_undefined rbp
        nop
        nop
        .cfi_restore rbp
        nop
        .cfi_def_cfa_offset 16
        nop
        .cfi_endproc
"""


@pytest.mark.parametrize("level", LEVELS)
def test_code_that_is_left_out_is_no_padding(level: LevelName, compile_c: Compiler, peers: Peers, tmp_path: Path) -> None:
    """No-ops with a row that SFrame cannot say, between rows that it can."""
    text = LEFT_OUT.replace("\n", "\\n")
    library = compile_c(f'__asm__("{text}");', "-shared", "-nostdlib", "-fPIC", "-Wl,--build-id=none")
    add_section(library, output=tmp_path / level, optimize=level)
    assert len(read(tmp_path / level).table) == 2
    assert compare(library, tmp_path / level, peers).ok


@pytest.mark.parametrize("level", LEVELS)
def test_rules_of_a_real_program_by_foreign_readers(level: LevelName, compile_c: Compiler, peers: Peers, tmp_path: Path) -> None:
    source = "#include <stdio.h>\n" + "".join(
        f"int f{n}(int n) {{ char b[n + {n}]; b[0] = n; return puts(b) + {n}; }}\n" for n in range(60)
    )
    program, out = compile_c(source + "int main(void) { return f3(1); }", "-O2", "-static"), tmp_path / level
    add_section(program, output=out, optimize=level)
    report = compare(program, out, peers)
    assert report.ok, str(report)
    assert subprocess.run([peers.tool("readelf"), "--sframe", out], check=True, capture_output=True).stderr == b""


def test_levels_are_ever_smaller(compile_c: Compiler, tmp_path: Path) -> None:
    program = compile_c("int main(void) { return 0; }", "-O2", "-static")
    sizes = [add_section(program, output=tmp_path / level, optimize=level, verify=False).section_bytes for level in LEVELS]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(LEVELS)
