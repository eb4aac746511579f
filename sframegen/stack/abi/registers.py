"""The registers of a thread as the kernel hands them out, in ptrace's NT_PRSTATUS and in the notes of core files."""

from __future__ import annotations

from struct import unpack_from
from typing import TYPE_CHECKING, NamedTuple

from sframegen.elf.records import EM_AARCH64, EM_S390, EM_X86_64, MARKS

if TYPE_CHECKING:
    from sframegen.format.abi import Abi

ALL_BITS = 0xFFFFFFFFFFFFFFFF


class Registers(NamedTuple):
    """`values` by DWARF number, of those that are known; `ra_mask`: the bits of a return address that are not its signature."""

    pc: int
    values: dict[int, int]
    ra_mask: int = ALL_BITS


class RegisterSet(NamedTuple):
    """A block of 64-bit words: how many, which of them is the PC, which are the others by DWARF number."""

    words: int
    pc: int
    places: dict[int, int]


# struct user_regs_struct: R15 R14 R13 R12 RBP RBX R11 R10 R9 R8 RAX RCX RDX RSI RDI, orig_rax, RIP, CS, EFLAGS, RSP, ...
_AMD64 = {number: at for at, number in enumerate((15, 14, 13, 12, 6, 3, 11, 10, 9, 8, 0, 2, 1, 4, 5))}
# struct _s390_fp_regs: FPC, padding, F0 to F15; DWARF's order of them is another
_S390_FLOATS = {16 + at: 1 + number for at, number in enumerate((0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15))}

# By e_machine: NT_PRSTATUS.
GENERAL: dict[int, RegisterSet] = {
    EM_X86_64: RegisterSet(27, 16, _AMD64 | {7: 19}),
    EM_AARCH64: RegisterSet(34, 32, {number: number for number in range(32)}),
    EM_S390: RegisterSet(27, 1, {number: 2 + number for number in range(16)}),
}
# By e_machine, NT_PRFPREG, where flexible rules may name such registers.
FLOATING: dict[int, RegisterSet] = {EM_S390: RegisterSet(17, 0, _S390_FLOATS)}

# An AArch64 address has 48 bits where nobody says otherwise; what is above is the signature.
RA_MASKS = {EM_AARCH64: (1 << 48) - 1}


def registers_of(abi: Abi, general: bytes, floating: bytes = b"", ra_mask: int | None = None) -> Registers | None:
    """Of the bytes of NT_PRSTATUS and NT_PRFPREG; None where the former are not a 64-bit thread's."""
    known = GENERAL[abi.machine]
    if len(general) != 8 * known.words:
        return None
    words = _words(abi, general, known)
    values = {number: words[at] for number, at in known.places.items()}
    floats = FLOATING.get(abi.machine)
    if floats and len(floating) >= 8 * floats.words:
        more = _words(abi, floating, floats)
        values |= {number: more[at] for number, at in floats.places.items()}
    return Registers(words[known.pc], values, RA_MASKS.get(abi.machine, ALL_BITS) if ra_mask is None else ra_mask)


def _words(abi: Abi, raw: bytes, known: RegisterSet) -> tuple[int, ...]:
    return unpack_from(f"{MARKS[abi.byte_order]}{known.words}Q", raw)
