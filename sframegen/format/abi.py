"""The table of ABIs that SFrame supports. All differences between ABIs are in this table."""

from __future__ import annotations

from types import MappingProxyType

from cfi.section import FollowedRegisters
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.elf.records import EHDR_SIZE, EM, ET, ByteOrder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sframegen.elf.file import ElfFile


class Relocation(NamedTuple):
    """A relocation type for data: a field of `size` bytes becomes S + A, or with `pc_relative` S + A - P."""

    size: int
    pc_relative: bool


class Abi(NamedTuple):
    """The properties of an ABI. Register numbers are those of DWARF.

    A fixed offset (in bytes from the CFA) of 0 means that each row says where the register is saved.
    """

    name: str
    sframe_id: int  # sfh_abi_arch
    machine: int  # e_machine
    byte_order: ByteOrder
    sp: int
    fp: int
    ra: int
    register_names: tuple[str, ...]
    base_registers: range  # registers that flexible rules may name, because stack tracers know their values
    since: int = 1  # the first SFrame version with this ABI
    fixed_fp_offset: int = 0
    fixed_ra_offset: int = 0
    sp_offset: int = 0  # the caller's SP is CFA + this
    sp_is_saved: bool = False  # functions save the caller's SP, on the stack or in a register, with a CFI rule
    ra_state: int = -1  # number of RA_SIGN_STATE, which tells if the return address is signed; -1: it never is
    pc: int | None = None  # number of the PC, if expressions may use it
    cfa_adjustment: int = 0  # the CFA offset n is stored as (n - cfa_adjustment) / cfa_scale
    cfa_scale: int = 1
    shares_rows: bool = True  # functions may share a block of rows; False: readers of the other byte order would swap it twice
    registers_as_offsets: bool = False  # RA and FP offsets can be register numbers, in versions that support it
    relocations: Mapping[int, Relocation] = MappingProxyType({})  # r_type -> relocation
    relative: int = 0  # r_type that adds the base to an address
    common_name: str = ""  # the common name of the machine, if it is not `name`
    module_note: str = ""  # tells users that no kernel of this machine reads the sections of its modules, even with patches
    ra_padding: bool = False  # default FDEs may save FP while RA is still in its register; RA's offset is then 0

    @property
    def ra_is_signed(self) -> bool:
        """True if return addresses can be signed."""
        return self.ra_state >= 0

    @property
    def followed(self) -> FollowedRegisters:
        """The registers whose CFI rules SFrame can express."""
        return FollowedRegisters(self.fp, self.sp, self.ra_state)


ABSOLUTE_64, ABSOLUTE_32, RELATIVE_64, RELATIVE_32 = (Relocation(size, relative) for relative in (False, True) for size in (8, 4))

AMD64 = Abi(
    name="AMD64",
    common_name="x86-64",
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
    # R_X86_64_64, 32, 32S, PC64, PC32
    relocations={1: ABSOLUTE_64, 10: ABSOLUTE_32, 11: ABSOLUTE_32, 24: RELATIVE_64, 2: RELATIVE_32},
    relative=8,
    module_note="x86-64 kernels walk their own stacks with ORC tables, and do not read the section",
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
    relocations={257: ABSOLUTE_64, 258: ABSOLUTE_32, 260: RELATIVE_64, 261: RELATIVE_32},  # R_AARCH64_ABS64, ABS32, PREL64, PREL32
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
    register_names=(*(f"r{n}" for n in range(16)), *(f"f{n}" for n in (0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15))),
    base_registers=range(32),
    since=2,
    relocations={22: ABSOLUTE_64, 4: ABSOLUTE_32, 23: RELATIVE_64, 5: RELATIVE_32},  # R_390_64, 32, PC64, PC32
    relative=12,
    sp_offset=-160,
    sp_is_saved=True,
    cfa_adjustment=160,
    cfa_scale=8,
    shares_rows=False,
    registers_as_offsets=True,
    module_note="no s390x kernel reads the section of a module",
    ra_padding=True,
)

ABIS = (AMD64, AARCH64, AARCH64_BE, S390X)
BY_MACHINE = {(abi.machine, abi.byte_order): abi for abi in ABIS}
BY_SFRAME_ID = {abi.sframe_id: abi for abi in ABIS}
IDENTS: dict[bytes, ByteOrder] = {b"\x02\x01": "little", b"\x02\x02": "big"}  # EI_CLASS and EI_DATA of 64-bit files -> byte order


def abi_of(elf: ElfFile) -> Abi:
    """Return the file's ABI. Raises FormatError for a machine that sframegen does not support."""
    try:
        return BY_MACHINE[elf.header.e_machine, elf.byte_order]
    except KeyError:
        supported = ", ".join(abi.name for abi in ABIS)
        raise elf.error(f"e_machine {elf.header.e_machine} ({elf.byte_order}-endian) is not supported, only {supported}") from None


def is_arm64(elf: ElfFile) -> bool:
    return elf.header.e_machine == AARCH64.machine


def is_linked(header: bytes) -> bool:
    """True if a file that begins with `header` is a linked ELF file for an ABI that SFrame supports."""
    order = IDENTS.get(header[4:6])
    if len(header) < EHDR_SIZE or not header.startswith(b"\x7fELF") or order is None:
        return False
    e_type, machine = (int.from_bytes(header[offset : offset + 2], order) for offset in (16, 18))
    return e_type in (ET.EXEC, ET.DYN) and (machine, order) in BY_MACHINE
