"""Rules of a Go program's code without call frame information: those that the linker writes where it is not told to strip."""

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

GO = shutil.which("go")
pytestmark = pytest.mark.skipif(GO is None, reason="no go")


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
            preempts = find_rule(table, programs.at["runtime.asyncPreempt.abi0"])
            assert preempts is not None
            assert preempts[-1] & RuleFlag.SIGNAL
            (restores,) = (programs.at[name] for name in programs.at if name.startswith("runtime.sigreturn"))
            assert find_rule(table, restores) is None
            before = find_rule(
                table, programs.at["runtime.systemstack_switch.abi0"] - 1
            )  # to its first byte callbacks from C return
            assert before is not None
            assert before[-1] & RuleFlag.SIGNAL
        for name in ("runtime.goexit.abi0", "runtime.rt0_go.abi0"):
            ends = find_rule(table, programs.at[name])
            assert ends is not None
            assert ends[-1] & RuleFlag.OUTERMOST


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
