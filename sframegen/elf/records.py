"""The records of 64-bit ELF files in either byte order, each declared once, and the constants in them."""

from __future__ import annotations

import struct
from functools import lru_cache

from sframegen.base.errors import FormatError
from sframegen.base.quick_typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar
from sframegen.elf.ranges import Extent

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

# Limits on the total length of strings, because a hostile file's entries could all share one endless string. In real files, strings
# that share an end, such as .rela.text.f and .text.f, have up to twice as many bytes as their table.
MAX_STRING_BYTES_PER_TABLE_BYTE, MIN_STRING_LIMIT = 4, 1 << 16
MAX_CACHED_TABLE = 1024  # bytes; small string tables are cached, because objects of one compiler often have the same table


def read_strings(table: bytes, offsets: tuple[int, ...]) -> list[str]:
    """Return the string at each offset. Raises FormatError if the strings have far more bytes than the table."""
    return (_read_strings if len(table) <= MAX_CACHED_TABLE else _read_strings.__wrapped__)(table, offsets)


@lru_cache(64)
def _read_strings(table: bytes, offsets: tuple[int, ...]) -> list[str]:
    allowed = max(MAX_STRING_BYTES_PER_TABLE_BYTE * len(table), MIN_STRING_LIMIT)
    strings = {}
    for offset in set(offsets):
        end = table.find(b"\0", offset)
        end = end if end >= 0 else len(table)
        allowed -= end - offset
        if allowed < 0:
            raise FormatError(f"{len(set(offsets))} names share {len(table)} bytes")
        strings[offset] = table[offset:end].decode(errors="replace")
    return [strings[offset] for offset in offsets]


ByteOrder = Literal["little", "big"]

PN_XNUM = 0xFFFF
NT_GNU_BUILD_ID = 3
ADDRESS_SPACE = 1 << 64  # bytes; addresses are modulo this
PLT_SECTIONS = (".plt", ".plt.got", ".plt.sec", ".plt.bnd", ".iplt")
EH_FRAMES = (".eh_frame", ".init.eh_frame")  # the second only in modules of kernels that replace PAC by a shadow call stack

# The constants of the ELF specification by prefix: SHT_NOTE is SHT.NOTE. They are not enums, because files also have other values.


class EM:
    S390, X86_64, AARCH64 = 22, 62, 183


class ET:
    REL, EXEC, DYN, CORE = 1, 2, 3, 4


class PT:
    NULL, LOAD, DYNAMIC, INTERP, NOTE, PHDR, TLS = 0, 1, 2, 3, 4, 6, 7
    GNU_EH_FRAME, GNU_RELRO, GNU_PROPERTY, GNU_SFRAME = 0x6474E550, 0x6474E552, 0x6474E553, 0x6474E554


class PF:
    X, W, R = 1, 2, 4


class SHN:
    UNDEF, LORESERVE, XINDEX = 0, 0xFF00, 0xFFFF


class SHT:
    NULL, PROGBITS, SYMTAB, STRTAB, RELA, HASH, NOTE, NOBITS, REL, DYNSYM = 0, 1, 2, 3, 4, 5, 7, 8, 9, 11
    GROUP, SYMTAB_SHNDX, RELR, CREL = 17, 18, 19, 0x40000014
    GNU_SFRAME, GNU_HASH, GNU_VERDEF, GNU_VERNEED, GNU_VERSYM = 0x6FFFFFF4, 0x6FFFFFF6, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF


class SHF:
    WRITE, ALLOC, EXECINSTR, INFO_LINK, GROUP, COMPRESSED = 1, 2, 4, 0x40, 0x200, 0x800


class STB:
    LOCAL, GLOBAL = 0, 1


class STT:
    NOTYPE, OBJECT, FUNC, SECTION, GNU_IFUNC = 0, 1, 2, 3, 10


# Machine names as uname prints them. The modules in code/isa and stack/abi have these names.
MACHINE_NAMES = {EM.X86_64: "x86_64", EM.AARCH64: "aarch64", EM.S390: "s390x"}


def constant_names(constants: type) -> dict[int, str]:
    """Return the full names, such as "PT_LOAD", of the constants in a class, by number."""
    return {number: f"{constants.__name__}_{name}" for name, number in vars(constants).items() if name.isupper()}


class Ehdr(NamedTuple):
    e_ident: bytes
    e_type: int
    e_machine: int
    e_version: int
    e_entry: int
    e_phoff: int
    e_shoff: int
    e_flags: int
    e_ehsize: int
    e_phentsize: int
    e_phnum: int
    e_shentsize: int
    e_shnum: int
    e_shstrndx: int


class Phdr(NamedTuple):
    p_type: int
    p_flags: int
    p_offset: int
    p_vaddr: int
    p_paddr: int
    p_filesz: int
    p_memsz: int
    p_align: int

    @property
    def extent(self) -> Extent:
        return Extent(self.p_offset, self.p_offset + self.p_filesz)


class Shdr(NamedTuple):
    sh_name: int
    sh_type: int
    sh_flags: int
    sh_addr: int
    sh_offset: int
    sh_size: int
    sh_link: int
    sh_info: int
    sh_addralign: int
    sh_entsize: int

    @property
    def extent(self) -> Extent:
        """Return the section's file range, even if it has no bytes in the file."""
        return Extent(self.sh_offset, self.sh_offset + self.sh_size)


class Sym(NamedTuple):
    st_name: int
    st_info: int
    st_other: int
    st_shndx: int
    st_value: int
    st_size: int


class Rela(NamedTuple):
    r_offset: int
    r_info: int
    r_addend: int

    @property
    def symbol(self) -> int:
        return self.r_info >> 32

    @property
    def type(self) -> int:
        return self.r_info & 0xFFFFFFFF


class DynEntry(NamedTuple):
    d_tag: int
    d_val: int


class Chdr(NamedTuple):
    ch_type: int
    ch_reserved: int
    ch_size: int
    ch_addralign: int


class Nhdr(NamedTuple):
    n_namesz: int
    n_descsz: int
    n_type: int


UNUSED_SEGMENT, UNUSED_SECTION = Phdr(*[0] * 8), Shdr(*[0] * 10)  # PT_NULL, SHT_NULL

# The layout of each record in `struct` codes, in the order of its fields.
LAYOUTS: dict[type[Any], str] = {
    Ehdr: "16sHHIQQQIHHHHHH",
    Phdr: "IIQQQQQQ",
    Shdr: "IIQQQQIIQQ",
    Sym: "IBBHQQ",
    Rela: "QQq",
    DynEntry: "QQ",
    Chdr: "IIQQ",
    Nhdr: "III",
}
STRUCT_BYTE_ORDERS: dict[ByteOrder, str] = {"little": "<", "big": ">"}
RECORDS: dict[tuple[type[Any], ByteOrder], struct.Struct] = {
    (record, order): struct.Struct(mark + layout)
    for record, layout in LAYOUTS.items()
    for order, mark in STRUCT_BYTE_ORDERS.items()
}
EHDR_SIZE, PHDR_SIZE, SHDR_SIZE, SYM_SIZE, RELA_SIZE, DYN_SIZE, CHDR_SIZE, NHDR_SIZE = (
    struct.calcsize("<" + code) for code in LAYOUTS.values()
)
assert (EHDR_SIZE, PHDR_SIZE, SHDR_SIZE, SYM_SIZE, RELA_SIZE, DYN_SIZE, CHDR_SIZE, NHDR_SIZE) == (64, 56, 64, 24, 24, 16, 24, 12)
WORD_SIZE = 4  # bytes of a section number in SHT_GROUP and SHT_SYMTAB_SHNDX

R = TypeVar("R", Ehdr, Phdr, Shdr, Sym, Rela, DynEntry, Chdr, Nhdr)


def pack_records(records: Iterable[R], byte_order: ByteOrder) -> bytes:
    """Return the bytes of records, all of one type, as they are in a file."""
    return b"".join(RECORDS[type(record), byte_order].pack(*record) for record in records)


def read_words(raw: memoryview, byte_order: ByteOrder) -> list[int]:
    """Return the 32-bit numbers in `raw`; an incomplete last one is ignored."""
    return list(struct.unpack_from(f"{STRUCT_BYTE_ORDERS[byte_order]}{len(raw) // WORD_SIZE}I", raw))


def pack_words(words: Collection[int], byte_order: ByteOrder) -> bytes:
    return struct.pack(f"{STRUCT_BYTE_ORDERS[byte_order]}{len(words)}I", *words)
