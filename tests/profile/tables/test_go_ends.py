"""Stacks of Go programs end where the runtime's bytes say so, with symbols or without, and nothing else looks like it."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from sframegen.elf.file import open_elf
from sframegen.elf.symbols import read_functions
from sframegen.profile.tables.make_table import make_proven_table, make_table
from sframegen.stack.walking.step import RuleFlag
from tests.support.decoded_tables import find_rule

if TYPE_CHECKING:
    from pathlib import Path

    from sframegen.elf.file import ElfFile
    from sframegen.profile.tables.decoded_table import DecodedTable
    from tests.support.peers import Compiler

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the assembly is x86-64's")

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


def test_other_programs_keep_their_rules(compile_c: Compiler) -> None:
    elf = built(compile_c, section="")
    table, at = make_table(elf).table, places(elf)
    assert not any(flags_at(table, at[name]) & RuleFlag.OUTERMOST for name in ("goexit", "systemstack", "other"))


def test_two_that_look_like_goexit_are_none(compile_c: Compiler) -> None:
    twin = 'asm(".balign 32, 0xcc\\n.byte 0xcc\\n.balign 32, 0xcc\\nnop\\ncall other\\nnop\\n.balign 32, 0xcc");'
    elf = built(compile_c, section=GO_SECTION + twin)
    assert not flags_at(make_table(elf).table, places(elf)["goexit"]) & RuleFlag.OUTERMOST


@pytest.mark.skipif(shutil.which("go") is None, reason="no go")
@pytest.mark.parametrize("flags", ["", "-s -w"])
def test_a_program_of_go(flags: str, go_cache: Path, tmp_path: Path) -> None:
    (tmp_path / "go.mod").write_text("module work\n")
    (tmp_path / "work.go").write_text("package main\nfunc main() { println(1) }\n")
    environment = {**os.environ, "GOCACHE": str(go_cache), "GOFLAGS": "-mod=mod", "CGO_ENABLED": "0"}
    command = ["go", "build", "-o"]
    subprocess.run([*command, "named", "."], cwd=tmp_path, env=environment, check=True)
    subprocess.run([*command, "program", "-ldflags", flags, "."], cwd=tmp_path, env=environment, check=True)
    at = places(open_elf(tmp_path / "named"))
    elf = open_elf(tmp_path / "program")
    table = make_table(elf).table or make_proven_table(elf).table
    assert flags_at(table, at["runtime.goexit.abi0"]) & RuleFlag.OUTERMOST
    assert flags_at(table, at["runtime.rt0_go.abi0"]) & RuleFlag.OUTERMOST
