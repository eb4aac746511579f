"""Return addresses: the instruction before one is a call, else it is a number that only looks like one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.elf.records import EM_AARCH64, EM_X86_64

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST = 7  # bytes of a call on x86-64 without prefixes
NOP = 0x90
NOPS_AARCH64 = (0xD503201F, 0xAA0003E0)  # nop; mov x0, x0


def ends_call(code: Callable[[int, int], bytes], pc: int, machine: int) -> bool:
    """True if a call ends at `pc`, or a nop: runtimes put one before an address that they push themselves, Go's goexit for one.

    `code(address, size)`: the bytes there, none where they cannot be read.
    """
    if machine == EM_AARCH64:
        word = int.from_bytes(code(pc - 4, 4), "little")
        # BL; BLR, BLRAA, BLRAAZ and the like
        return word >> 26 == 0x25 or word & 0xFEFFF000 == 0xD63F0000 or word in NOPS_AARCH64
    if machine == EM_X86_64:
        before = next(filter(None, (code(pc - size, size) for size in range(LONGEST, 0, -1))), b"")
        return before[-5:-4] == b"\xe8" or before[-1:] == bytes([NOP]) or any(map(_is_indirect_call, _tails(before)))
    return True


def _tails(data: bytes) -> list[bytes]:
    return [data[at:] for at in range(len(data) - 1)]


def _is_indirect_call(data: bytes) -> bool:
    """FF /2: opcode, ModRM, perhaps SIB, perhaps a displacement; all of `data`."""
    if data[0] != 0xFF or data[1] >> 3 & 7 != 2:
        return False
    mod, rm = data[1] >> 6, data[1] & 7
    size = 2 + (rm == 4 and mod != 3)
    if mod == 0 and (rm == 5 or (rm == 4 and len(data) > 2 and data[2] & 7 == 5)):
        size += 4
    elif mod in (1, 2):
        size += 1 if mod == 1 else 4
    return len(data) == size
