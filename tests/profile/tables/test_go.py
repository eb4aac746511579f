"""Stacks of Go programs end where the runtime's bytes say so, with symbols or without, and nothing else looks like it.

Code without call frame information has the rules that the linker writes where it is not told to strip.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from typing import TYPE_CHECKING

import pytest

from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.records import EM
from sframegen.elf.symbols import read_functions
from sframegen.profile.tables.make_table import Origin, make_proven_table, make_table
from sframegen.stack.walking.step import RuleFlag
from tests.support.decoded_tables import find_rule

if TYPE_CHECKING:
    from pathlib import Path

    from sframegen.profile.tables.decoded_table import DecodedTable
    from tests.support.peers import Compiler

x86_64 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the assembly is x86-64's")

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


def built(compile_c: Compiler, *flags: str, section: str = GO_SECTION) -> ElfFile:
    return open_elf(compile_c(RUNTIME.replace("SECTION", section), "-O1", *flags))


def flags_at(table: DecodedTable | None, address: int) -> int:
    assert table is not None
    found = find_rule(table, address)
    assert found is not None
    return int(found[-1])


def places(elf: ElfFile) -> dict[str, int]:
    return {symbol.name: symbol.address for symbol in read_functions(elf)}


@x86_64
def test_stacks_end_in_goexit_and_where_sp_comes_from_a_goroutine(compile_c: Compiler) -> None:
    elf = built(compile_c)
    table, at = make_table(elf).table, places(elf)
    assert flags_at(table, at["goexit"]) & RuleFlag.OUTERMOST  # where runtime.goexit+1 returns to, less 1
    assert flags_at(table, at["goexit"] + 6) & RuleFlag.OUTERMOST
    assert not flags_at(table, at["systemstack"]) & RuleFlag.OUTERMOST
    switch = at["systemstack"] + 12  # after the three instructions
    for address in (switch, switch + 4):  # whoever called it goes on, on the goroutine's stack
        assert flags_at(table, address) == RuleFlag.OUTERMOST | RuleFlag.CFA_DEREF
    assert flags_at(table, at["goexit"]) == RuleFlag.OUTERMOST
    back = switch + 3 + 2 + 4
    assert not flags_at(table, back) & RuleFlag.OUTERMOST  # ret: SP is the goroutine's again
    assert not flags_at(table, at["other"]) & RuleFlag.OUTERMOST


@x86_64
def test_other_programs_keep_their_rules(compile_c: Compiler) -> None:
    elf = built(compile_c, section="")
    table, at = make_table(elf).table, places(elf)
    assert not any(flags_at(table, at[name]) & RuleFlag.OUTERMOST for name in ("goexit", "systemstack", "other"))


@x86_64
def test_two_that_look_like_goexit_are_none(compile_c: Compiler) -> None:
    twin = 'asm(".balign 32, 0xcc\\n.byte 0xcc\\n.balign 32, 0xcc\\nnop\\ncall other\\nnop\\n.balign 32, 0xcc");'
    elf = built(compile_c, section=GO_SECTION + twin)
    assert not flags_at(make_table(elf).table, places(elf)["goexit"]) & RuleFlag.OUTERMOST


class Programs:
    """One program, with call frame information and stripped, for a machine."""

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
    named, stripped = (make_table(elf).table for elf in (programs.named, programs.stripped))
    assert named is not None
    assert stripped is not None
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
        table = make_table(elf).table
        assert table is not None
        if elf.header.e_machine == EM.X86_64:  # AArch64's has a frame that its table does not describe
            assert flags_at(table, programs.at["runtime.asyncPreempt.abi0"]) & RuleFlag.SIGNAL
            (restores,) = (programs.at[name] for name in programs.at if name.startswith("runtime.sigreturn"))
            assert find_rule(table, restores) is None
            # To its first byte callbacks from C return.
            assert flags_at(table, programs.at["runtime.systemstack_switch.abi0"] - 1) & RuleFlag.SIGNAL
        for name in ("runtime.goexit.abi0", "runtime.rt0_go.abi0"):
            assert flags_at(table, programs.at[name]) & RuleFlag.OUTERMOST


@pytest.mark.dear
def test_a_thread_begins_in_clone(programs: Programs) -> None:
    clone = programs.at["runtime.clone.abi0"]
    for elf in (programs.named, programs.stripped):
        table = make_table(elf).table
        assert table is not None
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
    assert section is not None
    table, data = section.header.sh_offset, bytearray(programs.stripped.data)
    if damage == "elsewhere":
        struct.pack_into("<Q", data, table + 24, (1 << 64) - 1)
    else:
        (functions,) = struct.unpack_from("<Q", data, table + 64)
        count = struct.unpack_from("<Q", data, table + 8)[0]
        for number in range(0, count, 2):
            struct.pack_into("<I", data, table + functions + 8 * number, 0x7FFFFFFF)
    made = make_table(ElfFile(memoryview(data)))
    assert made.table is not None
    assert find_rule(made.table, programs.at["main.main"]) is None
