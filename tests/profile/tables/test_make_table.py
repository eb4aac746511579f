"""A table says at each address what a search in its functions says, made of functions here and of real files; ends of stacks."""

from __future__ import annotations

import os
import random
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sframegen import add_section
from sframegen.base.errors import FormatError
from sframegen.conversion.cfi_sections import find_sources
from sframegen.conversion.convert import convert_sources
from sframegen.elf.code_bytes.machines import MACHINES
from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.records import EM, ET
from sframegen.elf.symbols import read_functions
from sframegen.format.abi import AMD64, abi_of
from sframegen.format.layouts import FormatVersion
from sframegen.format.locate import find_sframe, read_sframe
from sframegen.format.model import OUTERMOST, FdeType, FunctionTable, Kind, Match, Rule, Where, look_up_in
from sframegen.profile.tables import decoded_table
from sframegen.profile.tables.decoded_table import (
    ELEMENT_SIZE,
    MAX_REPEATED,
    MAX_RULES,
    MAX_TEXT_BYTES,
    NO_RULE,
    RULE_BYTES,
    DecodedTable,
    make_decoded_table,
    pack_rule,
)
from sframegen.profile.tables.make_table import Origin, make_proven_table, make_table
from sframegen.profile.tables.stack_ends import add_entry_function
from sframegen.stack.walking.step import RuleFlag
from tests.support.decoded_tables import DecodedRule, find_rule
from tests.support.peers import Compiler
from tests.support.zstandard import compress_section

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


x86_64 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the assembly is x86-64's")
# What musl's clone does, with names for the places.
THREAD = r"""
__asm__(".text\n.globl before\n.type before, @function\nbefore: mov $56, %al\n"
        " mov %rcx, (%rsi)\n syscall\n test %eax, %eax\n jne 1f\n"
        ".globl child\n.type child, @function\nchild: xor %ebp, %ebp\n pop %rdi\n call *%r9\n mov %eax, %edi\n xor %eax, %eax\n"
        " mov $60, %al\n syscall\n hlt\n.globl parent\n.type parent, @function\nparent: 1: ret\n");
int main(void) { return 0; }
"""
# What glibc's __start_context does; its call frame information has a caller there.
COROUTINE = r"""
__asm__(".text\n.balign 32\n.globl other\n.type other, @function\nother: .cfi_startproc\n PADDED\n ret\n.cfi_endproc\n.balign 16\n"
        ".globl begin\n.type begin, @function\nbegin: .cfi_startproc\n mov %rbx, %rsp\n mov (%rsp), %rdi\n"
        " test %rdi, %rdi\n je 1f\n call other\n mov %rax, %rdi\n 1: call other\n hlt\n.cfi_endproc\n.size begin, .-begin\n");
int main(void) { return 0; }
"""
# What glibc's clone3 does: its call frame information ends before the system call.
CREATOR = r"""
__asm__(".text\n.globl maker\n.type maker, @function\nmaker: .cfi_startproc\n mov $435, %eax\n.cfi_endproc\n.globl call\n"
        ".type call, @function\ncall: syscall\n test %rax, %rax\n jl 2f\n je 1f\n RETURN\n"
        ".globl child\n.type child, @function\nchild: 1: .cfi_startproc\n.cfi_undefined rip\n hlt\n.cfi_endproc\n2: hlt\n");
int main(void) { return 0; }
"""
AARCH64_CLONE = "010000d4 400000b4 c0035fd6 1d0080d2 e103c1a8 20003fd6 a80b80d2 010000d4"


def table_of(elf: ElfFile) -> DecodedTable:
    table = make_table(elf).table
    assert table
    return table


def opened(source: str, compile_c: Compiler) -> tuple[DecodedTable, dict[str, int]]:
    """(the table of a program; the addresses of its functions)."""
    elf = open_elf(compile_c(source, "-O1"))
    return table_of(elf), {symbol.name: symbol.address for symbol in read_functions(elf)}


def flags_at(table: DecodedTable, address: int) -> RuleFlag | None:
    rule = find_rule(table, address)
    return rule and rule.flags


def ends(table: DecodedTable, address: int, flag: RuleFlag = RuleFlag.OUTERMOST) -> bool | None:
    """Whether the rule of an address has that flag; None without one."""
    flags = flags_at(table, address)
    return None if flags is None else flag in flags


@x86_64
def test_a_thread_of_musl_has_no_caller(compile_c: Compiler) -> None:
    table, at = opened(THREAD, compile_c)
    assert [ends(table, address) for address in range(at["child"], at["parent"])] == [True] * (at["parent"] - at["child"])
    assert not ends(table, at["child"] - 1)  # there it may be the one that made the thread
    assert not ends(table, at["parent"])


@x86_64
@pytest.mark.parametrize("instruction", ["nop", ".skip 15, 0x90"])  # 15 bytes and `ret`: without padding after it
def test_a_coroutine_of_glibc_has_no_caller(compile_c: Compiler, instruction: str) -> None:
    table, at = opened(COROUTINE.replace("PADDED", instruction), compile_c)
    assert ends(table, at["begin"])
    assert ends(table, at["begin"] + 20)
    assert ends(table, at["begin"] - 1) is (instruction == "nop")  # where walks look; but no other function's last byte
    assert ends(table, at["other"]) is False


@x86_64
@pytest.mark.parametrize("first", ["", "endbr64"])  # the latter in a library for control flow enforcement
def test_no_call_ends_where_a_coroutine_returns_to(compile_c: Compiler, first: str) -> None:
    """The table says so: the code need not be in memory. The library's own calls in there end as all do."""
    source = COROUTINE.replace("PADDED", "nop").replace("begin: .cfi_startproc", f"begin: .cfi_startproc; {first}")
    table, at = opened(source, compile_c)
    assert [ends(table, at["begin"] + offset) for offset in (-1, 0, 4, 20)] == [True] * 4
    assert [ends(table, at["begin"] + offset, RuleFlag.SIGNAL) for offset in (-1, 0, 20)] == [True, False, False]


@x86_64
@pytest.mark.parametrize(("was", "now"), [("xor %ebp, %ebp", "xor %ebx, %ebx"), ("hlt", "nop")])
def test_code_that_differs_is_no_end(compile_c: Compiler, was: str, now: str) -> None:
    table, at = opened(THREAD.replace(was, now), compile_c)
    assert not ends(table, at["child"])


@x86_64
@pytest.mark.parametrize("ending", ["ret", "nop"])
def test_the_maker_of_a_thread_has_its_caller(compile_c: Compiler, ending: str) -> None:
    table, at = opened(CREATOR.replace("RETURN", ending), compile_c)
    after = [ends(table, address) for address in range(at["call"], at["child"])]
    assert set(after) == {False if ending == "ret" else None}
    assert ends(table, at["maker"]) is False
    assert ends(table, at["child"]) is True


def test_threads_of_aarch64() -> None:
    code = bytes.fromhex(AARCH64_CLONE)
    form = MACHINES[EM.AARCH64].new_thread
    match = re.fullmatch(form, code, re.DOTALL)
    assert match
    assert match.span(1) == (12, 32)
    assert re.fullmatch(form, code[:12] + code[16:], re.DOTALL)  # musl before 1.2.5 leaves x29


@pytest.mark.parametrize("machine", MACHINES)
def test_expressions_begin_with_certain_bytes(machine: int) -> None:
    """All code of each file is searched for them: one that may begin with several bytes takes ten times as long."""
    known = MACHINES[machine]
    go = (known.go.exit, known.go.switch, known.go.new_thread) if known.go else ()
    for expression in (known.eh_return, known.new_thread, known.coroutine, known.new_thread_call, *go):
        assert re.match(rb"$|\\[x0]", expression), expression


# -- the first code of a process has no caller, whether or not it has call frame information

ENTRY = 0x1000
CALL, TRAP, RETURN, NO_OP = bytes.fromhex("e800000000"), b"\xf4", b"\xc3", b"\x90"


def program(code: bytes) -> ElfFile:
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 2, 62, 1, ENTRY, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, ENTRY + len(code), ENTRY + len(code), 0x1000)
    return ElfFile(memoryview((header + load).ljust(ENTRY, b"\0") + code))


def test_first_code_reaches_to_its_first_call() -> None:
    cases: list[tuple[bytes, list[tuple[int, int]], list[tuple[int, int]]]] = [
        (NO_OP + CALL + TRAP, [], [(ENTRY, 6)]),
        (NO_OP + CALL + NO_OP + RETURN, [(ENTRY + 16, 8)], [(ENTRY, 6)]),  # the next function may begin after the call
        (NO_OP + TRAP, [(0x200, 8)], [(ENTRY, 2)]),
        (NO_OP + CALL, [(ENTRY + 4, 8)], [(ENTRY, 2)]),  # a function begins within the call: its rest is no instruction
        (NO_OP + CALL, [(ENTRY, 8)], []),
        (NO_OP + CALL, [(ENTRY - 8, 16)], []),
        (NO_OP + RETURN + CALL, [], []),  # a function like any other
        (NO_OP, [], []),
    ]
    for code, functions, expected in cases:
        table = FunctionTable(kinds=[Kind()], rules=[Rule(Where(7, 8), Where(None, -8, deref=True))])
        for start, size in functions:
            table.append(start, size, 0, [(0, 0)])
        table = add_entry_function(table, program(code.ljust(64, NO_OP)), AMD64)
        without_caller = [number for number in range(len(table)) if table.rows(number) == [(0, OUTERMOST)]]
        assert [(table.start[number], table.size[number]) for number in without_caller] == expected, code


def test_this_machines_programs_and_loader_begin_without_a_caller() -> None:
    loader = next(path for path in (Path("/lib64/ld-linux-x86-64.so.2"), Path("/lib/ld-linux-aarch64.so.1")) if path.exists())
    for path in (Path("/usr/bin/bash"), loader):
        elf = open_elf(path)
        assert ends(table_of(elf), elf.header.e_entry)


# -- stacks of Go programs end where the runtime's bytes say so, with symbols or without, and nothing else looks like it

# What Go 1.19 has, with the linker's call frame information, which ignores the change of SP.
RUNTIME = r"""
__asm__(".text\n.balign 32, 0xcc\n.byte 0xcc\n.balign 32, 0xcc\n"
        ".globl goexit\n.type goexit, @function\ngoexit: .cfi_startproc\n nop\n call other\n nop\n"
        ".cfi_endproc\n.size goexit, .-goexit\n"
        ".byte 0xcc\n.balign 32, 0xcc\n"
        ".globl systemstack\n.type systemstack, @function\nsystemstack: .cfi_startproc\n"
        " mov 8(%rsp), %rdi\n mov 56(%rdx), %rbx\n .byte 0x48, 0x89, 0xdc\n"
        ".globl on_other\non_other: mov (%rdi), %rdi\n call *%rdi\n mov 56(%rax), %rsp\n.globl back\nback: ret\n.cfi_endproc\n"
        ".size systemstack, .-systemstack\n.balign 32, 0xcc\n"
        ".globl other\n.type other, @function\nother: .cfi_startproc\n nop\n call goexit\n nop\n ret\n.cfi_endproc\n"
        ".size other, .-other\n");
SECTION int main(void) { return 0; }
"""
GO_SECTION = '__attribute__((section(".go.buildinfo"))) char info[16];'


@x86_64
def test_stacks_end_in_goexit_and_where_sp_comes_from_a_goroutine(compile_c: Compiler) -> None:
    table, at = opened(RUNTIME.replace("SECTION", GO_SECTION), compile_c)
    goexit, switch = at["goexit"], at["systemstack"] + 12  # after three instructions
    for address in (goexit, goexit + 6):  # where runtime.goexit+1 returns to, less 1
        assert flags_at(table, address) == RuleFlag.OUTERMOST
    for address in (switch, switch + 4):  # whoever called it goes on, on the goroutine's stack
        assert flags_at(table, address) == RuleFlag.OUTERMOST | RuleFlag.CFA_DEREF
    back = switch + 3 + 2 + 4  # ret: SP is the goroutine's again
    assert [ends(table, address) for address in (at["systemstack"], back, at["other"])] == [False] * 3


@x86_64
def test_other_programs_keep_their_rules(compile_c: Compiler) -> None:
    table, at = opened(RUNTIME.replace("SECTION", ""), compile_c)
    assert [ends(table, at[name]) for name in ("goexit", "systemstack", "other")] == [False] * 3


@x86_64
def test_two_that_look_like_goexit_are_none(compile_c: Compiler) -> None:
    twin = 'asm(".balign 32, 0xcc\\n.byte 0xcc\\n.balign 32, 0xcc\\nnop\\ncall other\\nnop\\n.balign 32, 0xcc");'
    table, at = opened(RUNTIME.replace("SECTION", GO_SECTION + twin), compile_c)
    assert ends(table, at["goexit"]) is False


class Programs:
    def __init__(self, folder: Path, machine: str, cache: Path) -> None:
        (folder / "go.mod").write_text("module work\n")
        (folder / "work.go").write_text("package main\nfunc main() { println(1) }\n")
        environment = {**os.environ, "GOCACHE": str(cache), "GOFLAGS": "-mod=mod", "CGO_ENABLED": "0", "GOARCH": machine}
        for name, flags in (("named", ""), ("stripped", "-s -w")):
            subprocess.run(["go", "build", "-o", name, "-ldflags", flags, "."], cwd=folder, env=environment, check=True)
        self.named, self.stripped = open_elf(folder / "named"), open_elf(folder / "stripped")
        self.at = {symbol.name: symbol.address for symbol in read_functions(self.named)}


@pytest.fixture(scope="module", params=["amd64", "arm64"])
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, go_cache: Path) -> Programs:
    if shutil.which("go") is None:
        pytest.skip("no go")
    return Programs(tmp_path_factory.mktemp("programs"), request.param, go_cache)


@pytest.mark.dear
def test_they_are_those_of_the_call_frame_information(programs: Programs) -> None:
    named, stripped = table_of(programs.named), table_of(programs.stripped)
    (start, end), *_ = programs.named.executable_ranges()
    both = 0
    for address in range(start, end, 4):
        rules = [find_rule(table, address) for table in (named, stripped)]
        both += None not in rules
        assert None in rules or rules[0] == rules[1]
    assert both > 0.9 * (end - start) // 4


def test_code_that_is_not_called(programs: Programs) -> None:
    """asyncPreempt returns to the next instruction to run; what a handler returns to has no rule, because walks know it."""
    for elf in (programs.named, programs.stripped):
        table = table_of(elf)
        if elf.header.e_machine == EM.X86_64:  # AArch64's has a frame that its table does not describe
            assert ends(table, programs.at["runtime.asyncPreempt.abi0"], RuleFlag.SIGNAL)
            (restores,) = (programs.at[name] for name in programs.at if name.startswith("runtime.sigreturn"))
            assert find_rule(table, restores) is None
            # To its first byte callbacks from C return.
            assert ends(table, programs.at["runtime.systemstack_switch.abi0"] - 1, RuleFlag.SIGNAL)
        for name in ("runtime.goexit.abi0", "runtime.rt0_go.abi0"):
            assert ends(table, programs.at[name])


@pytest.mark.dear
def test_a_thread_begins_in_clone(programs: Programs) -> None:
    clone = programs.at["runtime.clone.abi0"]
    for elf in (programs.named, programs.stripped):
        table = table_of(elf)
        found = [rule for address in range(clone, clone + 256) if (rule := find_rule(table, address)) is not None]
        kinds = [bool(rule[-1] & RuleFlag.OUTERMOST) for rule in found]
        assert kinds[0] is False
        assert kinds.count(True) > 40


def test_nothing_is_left_to_prove(programs: Programs) -> None:
    made = make_proven_table(programs.stripped)
    assert made.origin is not Origin.PROVEN
    assert made.table is None


@pytest.mark.parametrize("damage", ["descending", "elsewhere"])
def test_functions_that_cannot_be(programs: Programs, damage: str) -> None:
    """One that ends before it begins, and text that would be at the end of all addresses: without rules, and no error."""
    section = programs.stripped.section(".gopclntab")
    assert section
    table, data = section.header.sh_offset, bytearray(programs.stripped.data)
    if damage == "elsewhere":
        struct.pack_into("<Q", data, table + 24, (1 << 64) - 1)
    else:
        (functions,) = struct.unpack_from("<Q", data, table + 64)
        for number in range(0, struct.unpack_from("<Q", data, table + 8)[0], 2):
            struct.pack_into("<I", data, table + functions + 8 * number, 0x7FFFFFFF)
    assert find_rule(table_of(ElfFile(memoryview(data))), programs.at["main.main"]) is None
