"""The ABIs that SFrame knows, a row each: all that differs between them is here."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from cfi.section import FollowedRegisters
from sframegen.elf.records import EHDR_SIZE, EM, ET

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sframegen.elf.file import ElfFile
    from sframegen.elf.records import ByteOrder


class Relocation(NamedTuple):
    """A relocation of data: a field of `size` bytes becomes S + A, or S + A - P if it is relative to its own address."""

    size: int
    pc_relative: bool


class Abi(NamedTuple):
    """Register numbers are DWARF's. A fixed offset (bytes from the CFA) of 0 means that the register is tracked row by row."""

    name: str
    sframe_id: int  # sfh_abi_arch
    machine: int  # e_machine
    byte_order: ByteOrder
    sp: int
    fp: int
    ra: int
    register_names: tuple[str, ...]
    base_registers: range  # those that flexible rules may name: stack tracers have their values
    since: int = 1  # the first version that has it
    fixed_fp_offset: int = 0
    fixed_ra_offset: int = 0
    sp_offset: int = 0  # the caller's SP is CFA + this
    sp_is_saved: bool = False  # functions save the caller's SP, on the stack or in a register, and CFI says where
    ra_state: int = -1  # RA_SIGN_STATE, which says whether the return address is signed; -1: it never is
    pc: int | None = None  # the PC, where expressions name it
    cfa_adjustment: int = 0  # a CFA offset n is stored as (n - cfa_adjustment) / cfa_scale
    cfa_scale: int = 1
    shares_rows: bool = True  # functions may have one block of rows; readers of the other byte order would swap it twice
    registers_as_offsets: bool = False  # in versions that do so: RA and FP offsets can be register numbers
    relocations: Mapping[int, Relocation] = MappingProxyType({})  # by r_type
    relative: int = 0  # r_type that adds the base to an address
    other_name: str = ""  # what people call it, if they have another name than `name`
    ra_padding: bool = False  # default FDEs may have an FP offset where RA is in its register: its offset is then 0

    @property
    def ra_is_signed(self) -> bool:
        """True if return addresses can be signed."""
        return self.ra_state >= 0

    @property
    def followed(self) -> FollowedRegisters:
        """The registers whose rules decide what SFrame says."""
        return FollowedRegisters(self.fp, self.sp, self.ra_state)


ABSOLUTE_64, ABSOLUTE_32, RELATIVE_64, RELATIVE_32 = (Relocation(size, relative) for relative in (False, True) for size in (8, 4))

AMD64 = Abi(
    name="AMD64",
    other_name="x86-64",
    sframe_id=3,
    machine=EM.X86_64,
    byte_order="little",
    sp=7,
    fp=6,
    ra=16,
    pc=16,
    register_names=("rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", *(f"r{n}" for n in range(8, 16)), "rip"),
    base_registers=range(16),
    fixed_ra_offset=-8,
    relocations={1: ABSOLUTE_64, 10: ABSOLUTE_32, 11: ABSOLUTE_32, 24: RELATIVE_64, 2: RELATIVE_32},
    relative=8,
)
AARCH64 = Abi(
    name="AArch64",
    sframe_id=2,
    machine=EM.AARCH64,
    byte_order="little",
    sp=31,
    fp=29,
    ra=30,
    register_names=(*(f"x{n}" for n in range(31)), "sp"),
    base_registers=range(32),
    ra_state=34,
    relocations={257: ABSOLUTE_64, 258: ABSOLUTE_32, 260: RELATIVE_64, 261: RELATIVE_32},
    relative=1027,
)
AARCH64_BE = AARCH64._replace(name="AArch64 big-endian", sframe_id=1, byte_order="big", shares_rows=False)
S390X = Abi(
    name="s390x",
    sframe_id=4,
    machine=EM.S390,
    byte_order="big",
    sp=15,
    fp=11,
    ra=14,
    register_names=(
        *(f"r{n}" for n in range(16)),
        *(f"f{n}" for n in (0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)),
    ),
    base_registers=range(32),
    since=2,
    relocations={22: ABSOLUTE_64, 4: ABSOLUTE_32, 23: RELATIVE_64, 5: RELATIVE_32},
    relative=12,
    sp_offset=-160,
    sp_is_saved=True,
    cfa_adjustment=160,
    cfa_scale=8,
    shares_rows=False,
    registers_as_offsets=True,
    ra_padding=True,
)

ABIS = (AMD64, AARCH64, AARCH64_BE, S390X)
BY_MACHINE = {(abi.machine, abi.byte_order): abi for abi in ABIS}
BY_SFRAME_ID = {abi.sframe_id: abi for abi in ABIS}
ORDERS: dict[bytes, ByteOrder] = {b"\x02\x01": "little", b"\x02\x02": "big"}  # of 64-bit files, by class and encoding


def abi_of(elf: ElfFile) -> Abi:
    """The file's ABI; raises FormatError for machines that sframegen does not know."""
    try:
        return BY_MACHINE[elf.header.e_machine, elf.byte_order]
    except KeyError:
        known = ", ".join(abi.name for abi in ABIS)
        raise elf.error(f"e_machine {elf.header.e_machine} ({elf.byte_order}-endian) is not supported, only {known}") from None


def is_linked(header: bytes) -> bool:
    """True if a file that begins so is a linked ELF file for an ABI that SFrame has."""
    order = ORDERS.get(header[4:6])
    if len(header) < EHDR_SIZE or not header.startswith(b"\x7fELF") or order is None:
        return False
    e_type, machine = (int.from_bytes(header[at : at + 2], order) for at in (16, 18))
    return e_type in (ET.EXEC, ET.DYN) and (machine, order) in BY_MACHINE
