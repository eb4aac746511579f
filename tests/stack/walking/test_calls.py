"""What is before a return address: encodings of calls, by hand and by a compiler, and what is none."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import capstone
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sframegen.elf.file import open_elf
from sframegen.elf.symbols import sorted_functions
from sframegen.format.abi import AARCH64, AMD64, S390X, abi_of
from sframegen.stack.abi.machines import conventions_of
from tests.support.loops import for_each

if TYPE_CHECKING:
    from pathlib import Path

    from sframegen.format.abi import Abi
    from tests.support.peers import Compiler

START = 0x1000


def ends(code: bytes, abi: Abi) -> bool:
    """True if a call ends where `code` does, which is all that can be read."""

    def read(address: int, size: int) -> bytes:
        return code[address - START :][:size] if address >= START else b""

    return conventions_of(abi).ends_call(read, START + len(code))


@for_each(
    "code",
    [
        "e8 01 02 03 04",  # call rel32
        "ff d0",  # call *%rax
        "41 ff d7",  # call *%r15
        "ff 10",  # call *(%rax)
        "ff 14 c8",  # call *(%rax,%rcx,8)
        "ff 14 25 01 02 03 04",  # call *0x4030201
        "ff 15 01 02 03 04",  # call *0x4030201(%rip)
        "ff 50 08",  # call *8(%rax)
        "ff 54 c8 08",
        "ff 90 01 02 03 04",
        "ff 94 c8 01 02 03 04",
        "3e 41 ff 94 24 01 02 03 04",  # notrack call *0x4030201(%r12)
        "90",  # Go's goexit
    ],
)
def test_calls_of_x86_64(code: str) -> None:
    assert all(ends(bytes.fromhex(before + code), AMD64) for before in ("", "00", "48 89 e5 53 48 81 ec"))


def test_other_instructions_of_x86_64() -> None:
    """Jumps, a call and one more instruction, padding, returns, nothing."""
    jumps, calls = ("e9 01 02 03 04", "ff e0", "ff 25 01 02 03 04"), ("ff 50 08 c3", "e8 01 02 03 04 c3")
    for code in (*jumps, *calls, "0f 1f 84 00 00 00 00 00", "f3 0f 1e fa", "c3", ""):
        assert not ends(bytes.fromhex(code), AMD64), code


@for_each(
    ("word", "expected"),
    [
        (0x94000001, True),  # bl
        (0x97FFFFFF, True),
        (0xD63F0200, True),  # blr x16
        (0xD63F081F, True),  # blraaz x0
        (0xD73F0A11, True),  # blraa x16, x17
        (0xAA0003E0, True),  # mov x0, x0: Go's goexit
        (0x14000001, False),  # b
        (0xD61F0200, False),  # br
        (0xD65F03C0, False),  # ret
        (0xA9BF7BFD, False),  # stp x29, x30, [sp, #-16]!
    ],
)
def test_calls_of_aarch64(word: int, expected: bool) -> None:
    assert ends(word.to_bytes(4, "little"), AARCH64) is expected


def test_all_code_of_other_machines_may_be_a_call() -> None:
    assert ends(b"\x07\xfe", S390X)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the compiler's code is another")
def test_all_calls_that_a_compiler_makes(compile_c: Compiler) -> None:
    """Of a static program, C library and all: read by capstone from each function's start."""
    path: Path = compile_c("int main(void) { return 0; }", "-static")
    elf = open_elf(path)
    abi = abi_of(elf)
    disassembler = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    calls = others = 0
    for symbol in sorted_functions(elf)[:400]:
        code = bytes(elf.at(symbol.address, symbol.size))
        for address, size, mnemonic, _ in disassembler.disasm_lite(code, symbol.address):
            end = conventions_of(abi).ends_call(lambda at, count: bytes(elf.at(at, count)), address + size)
            if mnemonic.split()[-1] == "call":
                assert end, hex(address)
                calls += 1
            else:
                others += not end
    assert calls > 1000
    assert others > 20 * calls / 3


@given(st.binary(max_size=8), st.sampled_from([AMD64, AARCH64]))
def test_whatever_is_there_it_is_an_answer(code: bytes, abi: Abi) -> None:
    assert ends(code, abi) in (True, False)
