"""What assemblers and linkers put between functions, for each machine: no-ops, traps, zeros. Recognised byte by byte."""

from __future__ import annotations

from array import array
from functools import cache
from typing import NamedTuple

from sframegen.elf.records import EM_AARCH64, EM_S390, EM_X86_64

FAIL = 0xFFFF  # no state: the bytes are not padding


class Fill(NamedTuple):
    """`alone`: what stands as it is; `prefixed`: what any number of the prefix bytes may precede. None begins another."""

    alone: tuple[bytes, ...]
    prefixed: tuple[bytes, ...] = ()
    prefixes: bytes = b""


FILLS = {
    EM_X86_64: Fill(
        alone=(b"\x00", b"\xcc"),
        prefixed=(
            b"\x90",
            b"\x0f\x1f\x00",
            b"\x0f\x1f\x40\x00",
            b"\x0f\x1f\x44\x00\x00",
            b"\x0f\x1f\x80\x00\x00\x00\x00",
            b"\x0f\x1f\x84\x00\x00\x00\x00\x00",
        ),
        prefixes=b"\x66\x2e",
    ),
    EM_AARCH64: Fill(alone=(bytes(4), b"\x1f\x20\x03\xd5")),  # instructions are little-endian under both byte orders
    EM_S390: Fill(
        alone=(
            bytes(2),
            *(bytes([0x07, register]) for register in range(16)),  # bcr 0, register
            b"\x47\x00\x00\x00",
            b"\xa7\x04\x00\x00",
            b"\xc0\x04\x00\x00\x00\x00",
        )
    ),
}


@cache
def padding_states(machine: int) -> array[int]:
    """The next state for each state * 256 + byte. State 0: all bytes so far are padding; FAIL: they are not."""
    fill = FILLS[machine]
    states = [array("H", [FAIL]) * 256 for _ in range(2)]  # 0: between instructions; 1: behind a prefix
    for state in states[:]:
        for prefix in fill.prefixes:
            state[prefix] = 1
    for start, instruction in [(0, code) for code in fill.alone] + [(start, code) for start in (0, 1) for code in fill.prefixed]:
        state = states[start]
        for byte in instruction[:-1]:
            if state[byte] == FAIL:
                state[byte] = len(states)
                states.append(array("H", [FAIL]) * 256)
            state = states[state[byte]]
        state[instruction[-1]] = 0
    return array("H", b"".join(states))
