"""Applies the relocations of an object's code, so that its instructions can be followed as in a linked file.

Each undefined symbol gets an address after all sections, where there is no code (its stub), and if needed one for its GOT entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from linker.objects.laid_out import FIELDS, SECTION_GAP
from sframegen.elf.file import ElfFile, Externals
from sframegen.elf.ranges import align_up
from sframegen.elf.records import EHDR_SIZE, MACHINE_NAMES, PF, PHDR_SIZE, PN_XNUM, PT, SHF, SHT, Phdr, pack_records
from sframegen.elf.relocations import relocation_rows
from sframegen.elf.symbols import SymbolTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from linker.objects.laid_out import LaidOutObject
    from sframegen.elf.file import Section

STUB_SPACING = 16  # bytes between stubs, and between pointers to them
PAGE_MASK = 0xFFF
DEBUG_SECTIONS = (".debug_info", ".debug_line")


class Field(NamedTuple):
    """The field that a relocation type changes. As in psABIs, S is a symbol's address, A an addend, P the field's address.

    `value`: (S + A, P) -> the number to store. `bits`: (lowest bit in the word, number of bits, lowest bit of the number) for each
    part of the number. `pointer`: S is the address of a pointer to the symbol (GOT).
    """

    size: int
    value: Callable[[int, int], int]
    bits: tuple[tuple[int, int, int], ...] = ()  # empty: the whole word
    pointer: bool = False

    def fits(self, number: int) -> bool:
        """Return True if the number, which is signed, loses no high bit. Parts of a page (LO12) always fit."""
        width = max((low + count for _, count, low in self.bits), default=8 * self.size)
        return self.value is _absolute or -(1 << width - 1) <= number < 1 << width - 1


def _absolute(address: int, _: int) -> int:
    return address


def _relative(address: int, place: int) -> int:
    return address - place


def _pages(address: int, place: int) -> int:
    return (address & ~PAGE_MASK) - (place & ~PAGE_MASK)


DATA_64, DATA_32 = Field(8, _absolute), Field(4, _absolute)
X86_64 = {
    1: DATA_64,  # R_X86_64_64
    10: DATA_32,  # R_X86_64_32
    11: DATA_32,  # R_X86_64_32S
    **{kind: Field(4, _relative) for kind in (2, 4)},  # PC32, PLT32
    13: Field(2, _relative),  # PC16
    15: Field(1, _relative),  # PC8
    24: Field(8, _relative),  # PC64
    **{kind: Field(4, _relative, pointer=True) for kind in (9, 41, 42)},  # GOTPCREL and its relaxable forms
}
ADR = ((29, 2, 0), (5, 19, 2))  # immlo, immhi
AARCH64 = {
    257: DATA_64,  # R_AARCH64_ABS64
    258: DATA_32,  # ABS32
    260: Field(8, _relative),  # PREL64
    261: Field(4, _relative),  # PREL32
    273: Field(4, _relative, ((5, 19, 2),)),  # LD_PREL_LO19
    274: Field(4, _relative, ADR),  # ADR_PREL_LO21
    **{kind: Field(4, _pages, tuple((at, count, low + 12) for at, count, low in ADR)) for kind in (275, 276)},  # ADR_PREL_PG_HI21
    277: Field(4, _absolute, ((10, 12, 0),)),  # ADD_ABS_LO12_NC
    279: Field(4, _relative, ((5, 14, 2),)),  # TSTBR14
    280: Field(4, _relative, ((5, 19, 2),)),  # CONDBR19
    **{kind: Field(4, _relative, ((0, 26, 2),)) for kind in (282, 283)},  # JUMP26, CALL26
}
FIELDS_BY_MACHINE = {"x86_64": X86_64, "aarch64": AARCH64}


def resolve_code(elf: ElfFile, placed: LaidOutObject) -> ElfFile:
    """Return the laid out object with the relocations of its code and data applied, and with its `externals`.

    Raises FormatError if its tables contradict one another.
    """
    image = placed.image
    data = bytearray(image.data)
    end = max(section.header.sh_addr + section.header.sh_size for section in image.sections) + SECTION_GAP
    externals = _Externals(align_up(end, PAGE_MASK + 1), SymbolTable(image, placed.symbol_table) if placed.symbol_table else None)
    for section in elf.sections:
        is_loaded = section.header.sh_flags & SHF.ALLOC and section.header.sh_type == SHT.PROGBITS
        if (is_loaded or section.name in DEBUG_SECTIONS) and not section.header.sh_flags & SHF.COMPRESSED:
            _apply_relocations(elf, section, image.sections[section.number].header.sh_addr, externals, data)
    loads = [segment for segment in image.segments if segment.p_type != PT.LOAD]
    for s in (section.header for section in image.sections):
        if s.sh_flags & SHF.ALLOC and s.sh_type != SHT.NOBITS and s.sh_size:
            flags = PF.R | PF.X * bool(s.sh_flags & SHF.EXECINSTR) | PF.W * bool(s.sh_flags & SHF.WRITE)
            loads.append(Phdr(PT.LOAD, flags, s.sh_offset, s.sh_addr, s.sh_addr, s.sh_size, s.sh_size, 1))
    if len(loads) >= PN_XNUM:
        raise elf.error(f"{len(loads)} sections are too many to follow its instructions")
    header = image.header._replace(e_phoff=len(data), e_phentsize=PHDR_SIZE, e_phnum=len(loads))
    data[:EHDR_SIZE] = pack_records([header], elf.byte_order)
    data += pack_records(sorted(loads, key=lambda load: load.p_vaddr), elf.byte_order)
    resolved = ElfFile(memoryview(bytes(data)), elf.name)
    resolved.floating, resolved.relocated = image.floating, image.relocated
    resolved.externals = Externals(externals.stubs, externals.pointers, frozenset(externals.unresolved))
    return resolved


class _Externals:
    """The addresses of undefined symbols, which are assigned when they are first looked up."""

    def __init__(self, start: int, symbols: SymbolTable | None) -> None:
        self.next_address = start
        self.symbols = symbols
        self.addresses: dict[tuple[int, bool], int] = {}
        self.stubs: dict[int, str] = {}
        self.pointers: dict[int, str] = {}
        self.unresolved: set[int] = set()  # addresses of fields whose relocation could not be applied

    def address_of(self, number: int, *, pointer: bool) -> int | None:
        """Return the address of a symbol, or of a pointer to it; None for a number that is not in the symbol table."""
        if self.symbols is None or number >= len(self.symbols):
            return None
        symbol = self.symbols[number]
        if not pointer and self.symbols.section_of(number, symbol):
            return symbol.st_value
        if (number, pointer) not in self.addresses:
            self.addresses[number, pointer] = self.next_address
            (self.pointers if pointer else self.stubs)[self.next_address] = self.symbols.name_bytes(symbol.st_name).decode(
                errors="replace"
            )
            self.next_address += STUB_SPACING
        return self.addresses[number, pointer]


def _apply_relocations(elf: ElfFile, section: Section, base: int, externals: _Externals, data: bytearray) -> None:
    """Apply a section's relocations of known types to `data`. `base`: the section's address."""
    fields = FIELDS_BY_MACHINE.get(MACHINE_NAMES.get(elf.header.e_machine, ""), {})
    for offset, info, addend in relocation_rows(elf, section):
        field = fields.get(info & 0xFFFFFFFF)
        if field is None:  # jumps and calls do not have relocations of the other types
            continue
        address = externals.address_of(info >> 32, pointer=field.pointer)
        if offset + field.size > section.header.sh_size:
            raise elf.error(f"relocation at {offset:#x} is outside of it", section.name)
        number = 0 if address is None else field.value(address + addend, base + offset)
        if address is None or not field.fits(number):
            externals.unresolved.add(base + offset)
            continue
        at = section.header.sh_offset + offset
        if not field.bits:
            data[at : at + field.size] = (number % (1 << 8 * field.size)).to_bytes(field.size, elf.byte_order)
            continue
        word_struct = FIELDS[field.size, "little"]  # AArch64's instructions are little-endian in big-endian files, too
        [word] = word_struct.unpack_from(data, at)
        for word_bit, count, number_bit in field.bits:
            mask = (1 << count) - 1
            word = word & ~(mask << word_bit) | (number >> number_bit & mask) << word_bit
        word_struct.pack_into(data, at, word)
