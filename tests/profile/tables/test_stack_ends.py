"""Stacks end where a C library's bytes begin a thread or take a coroutine back, whatever the call frame information says."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sframegen.elf.code_bytes.machines import MACHINES
from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.records import EM
from sframegen.elf.symbols import read_functions
from sframegen.format.abi import AMD64
from sframegen.format.model import OUTERMOST, FunctionTable, Kind, Rule, Where
from sframegen.profile.tables.make_table import make_table
from sframegen.profile.tables.stack_ends import add_entry_function
from sframegen.stack.walking.step import RuleFlag
from tests.support.decoded_tables import find_rule

if TYPE_CHECKING:
    from collections.abc import Callable

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


def opened(
    source: str, compile_c: Compiler, flag: RuleFlag = RuleFlag.OUTERMOST
) -> tuple[Callable[[int], bool | None], dict[str, int]]:
    """(whether the rule of an address has that flag, None without one; the addresses of functions)."""
    elf = open_elf(compile_c(source, "-O1"))
    table = make_table(elf).table
    assert table is not None

    def ends(address: int) -> bool | None:
        rule = find_rule(table, address)
        return None if rule is None else bool(rule[-1] & flag)

    return ends, {symbol.name: symbol.address for symbol in read_functions(elf)}


@x86_64
def test_a_thread_of_musl_has_no_caller(compile_c: Compiler) -> None:
    ends, at = opened(THREAD, compile_c)
    assert [ends(address) for address in range(at["child"], at["parent"])] == [True] * (at["parent"] - at["child"])
    assert not ends(at["child"] - 1)  # there it may be the one that made the thread
    assert not ends(at["parent"])


@x86_64
@pytest.mark.parametrize("instruction", ["nop", ".skip 15, 0x90"])  # 15 bytes and `ret`: without padding after it
def test_a_coroutine_of_glibc_has_no_caller(compile_c: Compiler, instruction: str) -> None:
    ends, at = opened(COROUTINE.replace("PADDED", instruction), compile_c)
    assert ends(at["begin"])
    assert ends(at["begin"] + 20)
    assert ends(at["begin"] - 1) is (instruction == "nop")  # where walks look; but no other function's last byte
    assert ends(at["other"]) is False


@x86_64
def test_no_call_ends_where_a_coroutine_returns_to(compile_c: Compiler) -> None:
    """The table says so: the code need not be in memory. The library's own calls in there end as all do."""
    put, at = opened(COROUTINE.replace("PADDED", "nop"), compile_c, RuleFlag.SIGNAL)
    assert [put(at["begin"] + offset) for offset in (-1, 0, 20)] == [True, False, False]


@x86_64
def test_a_coroutine_of_a_libc_for_control_flow_enforcement(compile_c: Compiler) -> None:
    source = COROUTINE.replace("PADDED", "nop").replace("begin: .cfi_startproc\\n", "begin: .cfi_startproc\\n endbr64\\n")
    ends, at = opened(source, compile_c)
    assert source.count("endbr64") == 1
    assert [ends(at["begin"] + offset) for offset in (-1, 0, 4, 24)] == [True] * 4


@x86_64
@pytest.mark.parametrize(("was", "now"), [("xor %ebp, %ebp", "xor %ebx, %ebx"), ("hlt", "nop")])
def test_code_that_differs_is_no_end(compile_c: Compiler, was: str, now: str) -> None:
    ends, at = opened(THREAD.replace(was, now), compile_c)
    assert not ends(at["child"])


@x86_64
@pytest.mark.parametrize("ending", ["ret", "nop"])
def test_the_maker_of_a_thread_has_its_caller(compile_c: Compiler, ending: str) -> None:
    ends, at = opened(CREATOR.replace("RETURN", ending), compile_c)
    after = [ends(address) for address in range(at["call"], at["child"])]
    assert set(after) == {False if ending == "ret" else None}
    assert ends(at["maker"]) is False
    assert ends(at["child"]) is True


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
    """A static program with one segment: its code at 0x1000."""
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
        table = make_table(elf).table
        assert table is not None
        rule = find_rule(table, elf.header.e_entry)
        assert rule is not None
        assert RuleFlag.OUTERMOST in rule.flags
