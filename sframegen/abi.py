"""The ABIs that SFrame knows, a row each: all that differs between them is here."""

from __future__ import annotations

from typing import NamedTuple

from sframegen.elf import EM_X86_64, ByteOrder, ElfFile


class Abi(NamedTuple):
    """Register numbers are DWARF's. A fixed offset (bytes from the CFA) of 0 means that the register is tracked row by row."""

    name: str
    sframe_id: int  # sfh_abi_arch
    machine: int  # e_machine
    byte_order: ByteOrder
    sp: int
    fp: int
    ra: int
    fixed_fp_offset: int
    fixed_ra_offset: int
    register_names: tuple[str, ...]


AMD64 = Abi(
    name="AMD64",
    sframe_id=3,
    machine=EM_X86_64,
    byte_order="little",
    sp=7,
    fp=6,
    ra=16,
    fixed_fp_offset=0,
    fixed_ra_offset=-8,
    register_names=("rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", *(f"r{n}" for n in range(8, 16)), "rip"),
)

ABIS = (AMD64,)
BY_MACHINE = {(abi.machine, abi.byte_order): abi for abi in ABIS}
BY_SFRAME_ID = {abi.sframe_id: abi for abi in ABIS}


def abi_of(elf: ElfFile) -> Abi:
    """The file's ABI; raises FormatError for machines that sframegen does not know."""
    try:
        return BY_MACHINE[elf.header.e_machine, elf.byte_order]
    except KeyError:
        known = ", ".join(abi.name for abi in ABIS)
        raise elf.error(f"e_machine {elf.header.e_machine} ({elf.byte_order}-endian) is not supported, only {known}") from None
