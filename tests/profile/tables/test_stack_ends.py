"""Stacks end where bytes of a C library or of Go's runtime say so, whatever the call frame information says."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sframegen.elf.code_bytes.machines import MACHINES
from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.records import EM
from sframegen.elf.symbols import read_functions
from sframegen.format.abi import AMD64
from sframegen.format.model import OUTERMOST, FunctionTable, Kind, Rule, Where
from sframegen.profile.tables.make_table import Origin, make_proven_table, make_table
from sframegen.profile.tables.stack_ends import add_entry_function
from sframegen.stack.walking.step import RuleFlag
from tests.support.decoded_tables import find_rule

if TYPE_CHECKING:
    from sframegen.profile.tables.decoded_table import DecodedTable
    from tests.support.peers import Compiler


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
            command = ["go", "build", "-o", name, "-ldflags", flags, "."]
            subprocess.run(command, cwd=folder, env=environment, check=True)
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
