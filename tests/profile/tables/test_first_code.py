"""The first code of a process has no caller, whether or not it has call frame information."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING

from sframegen.elf.file import ElfFile, open_elf
from sframegen.format.abi import AMD64
from sframegen.format.model import OUTERMOST, FunctionTable, Kind, Rule, Where
from sframegen.profile.tables.make_table import make_table
from sframegen.profile.tables.stack_ends import add_entry_function
from sframegen.stack.walking.step import RuleFlag
from tests.support.decoded_tables import find_rule

if TYPE_CHECKING:
    from collections.abc import Iterable

ENTRY = 0x1000
CALL, TRAP, RETURN, NO_OP = bytes.fromhex("e800000000"), b"\xf4", b"\xc3", b"\x90"


def program(code: bytes) -> ElfFile:
    """A static program with one segment: its code at 0x1000."""
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 2, 62, 1, ENTRY, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, ENTRY + len(code), ENTRY + len(code), 0x1000)
    return ElfFile(memoryview((header + load).ljust(ENTRY, b"\0") + code))


def covered(*functions: tuple[int, int]) -> FunctionTable:
    table = FunctionTable(kinds=[Kind()], rules=[Rule(Where(7, 8), Where(None, -8, deref=True))])
    for start, size in functions:
        table.append(start, size, 0, [(0, 0)])
    return table


def added(code: bytes, functions: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """(start, size) of functions that have no caller."""
    table = add_entry_function(covered(*functions), program(code.ljust(64, NO_OP)), AMD64)
    return [(start, table.size[number]) for number, start in enumerate(table.start) if table.rows(number) == [(0, OUTERMOST)]]


def test_it_reaches_to_its_first_call() -> None:
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
    assert [added(code, functions) for code, functions, _ in cases] == [expected for *_, expected in cases]


def test_this_machines_programs_and_loader_begin_without_a_caller() -> None:
    loader = next(path for path in (Path("/lib64/ld-linux-x86-64.so.2"), Path("/lib/ld-linux-aarch64.so.1")) if path.exists())
    for path in (Path("/usr/bin/bash"), loader):
        elf = open_elf(path)
        table = make_table(elf).table
        assert table is not None
        rule = find_rule(table, elf.header.e_entry)
        assert rule is not None
        assert RuleFlag.OUTERMOST in rule.flags
