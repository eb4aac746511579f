"""The table of ABIs, beside what pyelftools and DWARF call these numbers."""

from __future__ import annotations

from itertools import product

from elftools.dwarf.descriptions import describe_reg_name
from elftools.elf import enums

from sframegen.elf.records import EHDR_SIZE, ByteOrder
from sframegen.format.abi import AARCH64, AARCH64_BE, ABIS, AMD64, BY_MACHINE, S390X, Abi, Relocation, is_linked
from tests.support.inputs.linker_inputs import small_file
from tests.support.loops import for_each

NAMES = {
    "AMD64": (enums.ENUM_RELOC_TYPE_x64, ("R_X86_64_64", "R_X86_64_32", "R_X86_64_32S", "R_X86_64_PC64", "R_X86_64_PC32")),
    "AArch64": (enums.ENUM_RELOC_TYPE_AARCH64, ("R_AARCH64_ABS64", "R_AARCH64_ABS32", "R_AARCH64_PREL64", "R_AARCH64_PREL32")),
    "s390x": (enums.ENUM_RELOC_TYPE_S390X, ("R_390_64", "R_390_32", "R_390_PC64", "R_390_PC32")),
}


@for_each("abi", ABIS, ids=lambda abi: abi.name)
def test_relocations_of_data(abi: Abi) -> None:
    numbers, names = NAMES[abi.name.removesuffix(" big-endian")]
    expected = {numbers[name]: Relocation(4 if "32" in name else 8, "P" in name) for name in names}
    assert dict(abi.relocations) == expected


def test_numbers_of_the_specification() -> None:
    assert [(abi.sframe_id, abi.byte_order) for abi in ABIS] == [(3, "little"), (2, "little"), (1, "big"), (4, "big")]
    assert [abi.machine for abi in ABIS] == [enums.ENUM_E_MACHINE[name] for name in ("EM_X86_64", *["EM_AARCH64"] * 2, "EM_S390")]
    assert [(abi.fixed_fp_offset, abi.fixed_ra_offset) for abi in ABIS] == [(0, -8), (0, 0), (0, 0), (0, 0)]
    assert [(abi.sp_offset, abi.cfa_adjustment, abi.cfa_scale) for abi in ABIS] == [(0, 0, 1)] * 3 + [(-160, 160, 8)]
    assert [abi.ra_is_signed for abi in ABIS] == [False, True, True, False]


def test_only_readers_of_one_s_own_byte_order_know_shared_rows() -> None:
    assert [abi.shares_rows for abi in ABIS] == [True, True, False, False]


def test_registers_by_dwarf_number() -> None:
    assert [(abi.sp, abi.fp, abi.ra) for abi in ABIS] == [(7, 6, 16), (31, 29, 30), (31, 29, 30), (15, 11, 14)]
    assert list(AMD64.register_names) == [describe_reg_name(n, "x64") for n in range(16)] + ["rip"]
    assert list(AARCH64.register_names) == [describe_reg_name(n, "AArch64") for n in range(31)] + ["sp"]
    assert AARCH64_BE.register_names == AARCH64.register_names
    # the s390x supplement: floating point registers come in another order
    assert S390X.register_names[:17] == (*(f"r{n}" for n in range(16)), "f0")
    assert [S390X.register_names.index(f"f{n}") for n in range(16)] == [
        16, 20, 17, 21, 18, 22, 19, 23, 24, 28, 25, 29, 26, 30, 27, 31,
    ]  # fmt: skip


def test_which_files_are_linked() -> None:
    file = small_file()
    assert is_linked(file)
    assert is_linked(file[:EHDR_SIZE])
    orders: tuple[ByteOrder, ...] = ("big", "little")
    for machine, order in product((22, 62, 183), orders):
        header = small_file(order)[:18] + machine.to_bytes(2, order) + bytes(44)
        assert is_linked(header) is ((machine, order) in BY_MACHINE)
    assert not is_linked(file[: EHDR_SIZE - 1])
    assert not is_linked(b"\x7fELG" + file[4:])
    assert not is_linked(file[:4] + b"\x01" + file[5:])  # 32 bits
    assert not is_linked(file[:5] + b"\x02" + file[6:])  # the other byte order
    for e_type, linked in ((1, False), (2, True), (3, True), (4, False)):
        assert is_linked(file[:16] + bytes([e_type, 0]) + file[18:]) is linked
