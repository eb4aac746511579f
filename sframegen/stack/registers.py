"""The registers of a thread as the kernel hands them out, in ptrace's NT_PRSTATUS and in the notes of core files."""

from __future__ import annotations

from itertools import chain
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from sframegen.elf import EM_AARCH64, EM_S390, EM_X86_64
from sframegen.format.records import BYTE_ORDER_MARKS

if TYPE_CHECKING:
    from sframegen.abi import Abi

ALL_BITS = 0xFFFFFFFFFFFFFFFF


class Registers(NamedTuple):
    """`values` by DWARF number, of those that are known; `ra_mask`: the bits of a return address that are not its signature."""

    pc: int
    values: dict[int, int]
    ra_mask: int = ALL_BITS


class RegisterSet(NamedTuple):
    """Where 64-bit registers are in a block of bytes: of which `size`, the PC, the others by DWARF number."""

    size: int
    pc: int
    places: dict[int, int]


# struct user_regs_struct: R15 R14 R13 R12 RBP RBX R11 R10 R9 R8 RAX RCX RDX RSI RDI, orig_rax, RIP, CS, EFLAGS, RSP, ...
_AMD64 = {number: 8 * at for at, number in enumerate((15, 14, 13, 12, 6, 3, 11, 10, 9, 8, 0, 2, 1, 4, 5))}
# struct _s390_fp_regs: FPC, padding, F0 to F15; DWARF's order of them is another
_S390_FLOATS = {16 + at: 8 + 8 * number for at, number in enumerate((0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15))}

# By e_machine: NT_PRSTATUS.
GENERAL: dict[int, RegisterSet] = {
    EM_X86_64: RegisterSet(216, 16 * 8, _AMD64 | {7: 19 * 8}),
    EM_AARCH64: RegisterSet(272, 32 * 8, {number: 8 * number for number in range(32)}),
    EM_S390: RegisterSet(216, 8, {number: 16 + 8 * number for number in range(16)}),
}
# By e_machine, NT_PRFPREG, where flexible rules may name such registers.
FLOATING: dict[int, RegisterSet] = {EM_S390: RegisterSet(136, 0, _S390_FLOATS)}

# An AArch64 address has 48 bits where nobody says otherwise; what is above is the signature.
RA_MASKS = {EM_AARCH64: (1 << 48) - 1}


def registers_of(abi: Abi, general: bytes, floating: bytes = b"", ra_mask: int | None = None) -> Registers | None:
    """Of the bytes of NT_PRSTATUS and NT_PRFPREG; None where the former are not a 64-bit thread's."""
    known = GENERAL[abi.machine]
    if len(general) != known.size:
        return None
    word = Struct(BYTE_ORDER_MARKS[abi.byte_order] + "Q").unpack_from
    floats = FLOATING.get(abi.machine)
    more = floats.places.items() if floats and len(floating) >= floats.size else ()
    blocks = chain(((general, *item) for item in known.places.items()), ((floating, *item) for item in more))
    values = {number: word(block, place)[0] for block, number, place in blocks}
    return Registers(word(general, known.pc)[0], values, RA_MASKS.get(abi.machine, ALL_BITS) if ra_mask is None else ra_mask)
