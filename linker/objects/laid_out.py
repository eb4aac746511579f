"""Lays a relocatable object out in memory as if it were linked alone, so that other code can treat it like a linked file.

Each section gets an address of its own. The symbols get these addresses, and relocations are applied to the call frame information
and the SFrame sections. They also give the anchors: symbols by which new relocations can refer to functions.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from struct import Struct
from typing import TYPE_CHECKING

from cfi.expression import PC_PERIOD
from sframegen.elf.code_areas import is_code
from sframegen.elf.file import ElfFile, Relocated, Section
from sframegen.elf.ranges import START, align_up, index_of_containing_range
from sframegen.elf.records import (
    ADDRESS_SPACE,
    EH_FRAMES,
    EHDR_SIZE,
    ET,
    PF,
    PHDR_SIZE,
    PN_XNUM,
    PT,
    RECORDS,
    SHDR_SIZE,
    SHF,
    SHN,
    SHT,
    STRUCT_BYTE_ORDERS,
    STT,
    SYM_SIZE,
    Ehdr,
    Phdr,
    Shdr,
    read_words,
)
from sframegen.elf.relocations import relocation_rows, unpack_columns
from sframegen.elf.symbols import ST_VALUE_OFFSET, SymbolTable
from sframegen.format.abi import abi_of
from sframegen.format.layouts import F_FDE_FUNC_START_PCREL, HEADER_SIZE

if TYPE_CHECKING:
    from sframegen.format.abi import Abi

FIRST_ADDRESS = 1 << 20
SECTION_GAP = 64  # bytes between sections: more than the padding that functions of one FDE may have between them
MAX_ADDRESS_SPAN = 1 << 31  # the reach of a 32-bit pc-relative field
UNMATCHED_ADDRESS = 1 << 40  # far from all code, for sections of a debug file that match no section of the object
FLAGS_OFFSET = 3  # of the flags in an SFrame section
# (bytes of a relocated field, byte order) -> the field
FIELDS = {(size, order): Struct(mark + code) for size, code in ((4, "I"), (8, "Q")) for order, mark in STRUCT_BYTE_ORDERS.items()}
CFI_SECTIONS = (*EH_FRAMES, ".debug_frame")
SymbolAndAddend = tuple[int, int]  # the symbol's number, and the distance of an address from it


@dataclass
class LaidOutObject:
    """An object laid out in memory. `image`: a linked file with its new addresses."""

    image: ElfFile
    symbol_table: Section | None
    sections: list[tuple[int, int, int]]  # (start, end, number) of executable sections, ascending
    anchors: dict[int, SymbolAndAddend]  # address -> symbol and addend of the first relocation to it in call frame information

    def section_at(self, address: int) -> int:
        """Return the number of the executable section that holds an address."""
        return self.sections[bisect_right(self.sections, address, key=START) - 1][2]

    def symbol_and_addend(self, address: int) -> SymbolAndAddend:
        """Return (symbol, addend) for a function's address, as its FDE has them, or relative to the last anchor before it."""
        if address in self.anchors:
            return self.anchors[address]
        anchor, (symbol, addend) = self._anchor_before(address)
        return symbol, addend + address - anchor

    def _anchor_before(self, address: int) -> tuple[int, SymbolAndAddend]:
        """Return the last anchor before an address in its section, or one of the section's symbols if there is none."""
        number = self.section_at(address)
        last = bisect_right(self._anchor_addresses, address) - 1
        if last >= 0 and self.section_at(self._anchor_addresses[last]) == number:
            return self._anchor_addresses[last], self.anchors[self._anchor_addresses[last]]
        if number not in self._section_symbols:
            message = "it has no symbols, so relocations cannot refer to its functions"
            raise self.image.error(message, self.image.sections[number].name)
        return self._section_symbols[number]

    @cached_property
    def _anchor_addresses(self) -> list[int]:
        """Return the addresses of all anchors in code, ascending."""
        return sorted(address for address in self.anchors if index_of_containing_range(self.sections, address) is not None)

    @cached_property
    def _section_symbols(self) -> dict[int, tuple[int, SymbolAndAddend]]:
        """Return an anchor for each code section, preferably at its section symbol, by section number."""
        symbol_of_section: dict[int, tuple[int, SymbolAndAddend]] = {}
        symbols = SymbolTable(self.image, self.symbol_table) if self.symbol_table else ()
        for symbol_number, symbol in enumerate(symbols):
            index = index_of_containing_range(self.sections, symbol.st_value)
            number = SHN.UNDEF if index is None else self.sections[index][2]
            is_in_section = number != SHN.UNDEF and symbol.st_shndx in (number, SHN.XINDEX)
            if is_in_section and (number not in symbol_of_section or symbol.st_info & 15 == STT.SECTION):  # 15: the symbol's type
                symbol_of_section[number] = symbol.st_value, (symbol_number, 0)
        return symbol_of_section


def place_debug_file(debug: ElfFile, of: LaidOutObject) -> ElfFile:
    """Lay out a separate debug file, with each section at the address of the object's section of the same name and size.

    Sections whose name and size are not unique in both files get an address without code. Raises FormatError like `lay_out`.
    """

    def key(section: Section) -> tuple[str, int]:
        return section.name, section.header.sh_size

    loaded = [[section for section in file.sections if section.header.sh_flags & SHF.ALLOC] for file in (debug, of.image)]
    counts = [Counter(map(key, sections)) for sections in loaded]
    object_addresses = {key(section): section.header.sh_addr for section in loaded[1]}
    addresses = [0] * len(debug.sections)
    for section in loaded[0]:
        is_unique = all(count[key(section)] == 1 for count in counts)
        addresses[section.number] = object_addresses[key(section)] if is_unique else UNMATCHED_ADDRESS
    return lay_out(debug, abi_of(debug), addresses=addresses).image


def lay_out(elf: ElfFile, abi: Abi, *, anchors_only: bool = False, addresses: list[int] | None = None) -> LaidOutObject:
    """Lay an object out in memory. Raises FormatError if its tables contradict one another.

    `anchors_only`: do not relocate call frame information and SFrame sections, as the caller does not read them. `addresses`: the
    addresses of the sections by number, or None to choose them.
    """
    tables = [section for section in elf.sections if section.header.sh_type == SHT.SYMTAB]
    if len(tables) > 1:
        raise elf.error(f"{len(tables)} symbol tables, expected one")
    check_disjoint(elf)
    for section in elf.sections:
        if section.header.sh_type != SHT.NOBITS:
            elf.slice(section.header.sh_offset, section.header.sh_size, section.name)
    addresses = _choose_addresses(elf) if addresses is None else addresses
    data = bytearray(elf.data)
    symbols = _place_symbols(elf, tables[0], addresses, data) if tables else []
    code = [section for section in elf.sections if is_code(section)]
    placed = sorted((addresses[s.number], addresses[s.number] + s.header.sh_size, s.number) for s in code)
    anchors: dict[int, SymbolAndAddend] = {}
    relocated: dict[int, Relocated] = {}
    for section in elf.sections:
        if _is_relocated(section) and not (anchors_only and is_sframe(section) and _has_all_fields(elf, section)):
            written, new_anchors = (None if anchors_only else data), ({} if is_sframe(section) else anchors)
            relocated[section.number] = _relocate(elf, section, abi, addresses[section.number], symbols, written, new_anchors)
    image = ElfFile(memoryview(_add_program_headers(elf, addresses, code, data)), elf.name)
    image.relocated = relocated
    image.floating = [(start, end) for start, end, number in placed if _may_be_anywhere(elf.sections[number])]
    return LaidOutObject(image, tables[0] if tables else None, placed, anchors)


def check_disjoint(elf: ElfFile) -> None:
    """Raise FormatError if an object's sections are together larger than its file, as shared bytes could be read very often."""
    sizes = (section.header.sh_size for section in elf.sections if section.header.sh_type not in (SHT.NULL, SHT.NOBITS))
    if sum(sizes) > len(elf.data):
        raise elf.error("its sections overlap")


def map_members_to_groups(elf: ElfFile) -> dict[int, Section]:
    """Return each group member's section group, by the member's section number."""
    members: dict[int, Section] = {}
    for group in elf.sections:
        if group.header.sh_type == SHT.GROUP:
            members.update(dict.fromkeys(read_group(elf, group)[1:], group))
    return members


def read_group(elf: ElfFile, group: Section) -> list[int]:
    """Return a section group's contents: its flags, then the numbers of its members."""
    return read_words(elf.contents(group), elf.byte_order)


def starts_are_section_relative(elf: ElfFile, section: Section) -> bool:
    """Return True for SFrame sections of GNU as before 2.45, whose start fields count from the section, not from themselves."""
    header = section.header
    if header.sh_type != SHT.PROGBITS or not is_sframe(section) or header.sh_size < HEADER_SIZE:
        return False
    return not elf.contents(section)[FLAGS_OFFSET] & F_FDE_FUNC_START_PCREL


def is_sframe(section: Section) -> bool:
    """Return True for an SFrame section that is not empty. Assemblers before binutils 2.45 gave them the type of plain data."""
    header = section.header
    is_old = header.sh_type == SHT.PROGBITS and section.name == ".sframe"
    return header.sh_size > 0 and (header.sh_type == SHT.GNU_SFRAME or is_old)


def _is_relocated(section: Section) -> bool:
    """Return True for call frame information and existing `.sframe` sections."""
    if is_sframe(section):
        return True
    has_plain_bytes = section.header.sh_type != SHT.NOBITS and not section.header.sh_flags & SHF.COMPRESSED
    return has_plain_bytes and section.name in CFI_SECTIONS


def _may_be_anywhere(section: Section) -> bool:
    """Return True if a linker can place the section's code at any address modulo PC_PERIOD."""
    align = section.header.sh_addralign
    return align == 0 or align % PC_PERIOD != 0


def _choose_addresses(elf: ElfFile) -> list[int]:
    """Return the address of each section. SFrame sections come last, so that replacing them does not move others."""
    addresses = [0] * len(elf.sections)
    next_address = FIRST_ADDRESS
    for section in sorted(elf.sections, key=is_sframe):
        header = section.header
        next_address = align_up(next_address, min(max(header.sh_addralign, 16), 4096))
        if header.sh_flags & SHF.ALLOC:  # others stay at 0, so that CIE pointers in .debug_frame become offsets in it
            addresses[section.number] = next_address
            next_address += header.sh_size + SECTION_GAP
        if next_address >= MAX_ADDRESS_SPAN:
            raise elf.error("its sections do not fit into 2 GiB", section.name)
    return addresses


def _place_symbols(elf: ElfFile, table: Section, addresses: list[int], data: bytearray) -> list[int | None]:
    """Return each symbol's address, or None if it is undefined. Also writes the addresses to the symbol table in `data`."""
    symbols = SymbolTable(elf, table, elf.stored_contents(table))
    words = array("Q", bytes(symbols.raw))
    swapped = elf.byte_order != sys.byteorder
    if swapped:
        words.byteswap()
    sections = symbols.sections()
    values = words[ST_VALUE_OFFSET // 8 :: SYM_SIZE // 8]
    symbol_addresses = [
        (addresses[section] + value) % (1 << 64) if SHN.UNDEF < section < len(addresses) else None
        for section, value in zip(sections, values, strict=True)
    ]
    placed = (value if address is None else address for address, value in zip(symbol_addresses, values, strict=True))
    words[ST_VALUE_OFFSET // 8 :: SYM_SIZE // 8] = array("Q", placed)
    if swapped:
        words.byteswap()
    data[table.header.sh_offset : table.header.sh_offset + len(symbols.raw)] = words.tobytes()
    return symbol_addresses


def _has_all_fields(elf: ElfFile, section: Section) -> bool:
    """Return True if each relocated field lies within the section, assuming the largest field size."""
    last = section.header.sh_size - max(size for size, _ in FIELDS)
    tables = elf.relocation_tables.get(section.number, ())
    return all(
        table.header.sh_type == SHT.RELA and max(unpack_columns(elf.contents(table), elf.byte_order).offset, default=0) <= last
        for table in tables
    )


def _relocate(
    elf: ElfFile, section: Section, abi: Abi, base: int, symbols: list[int | None], data: bytearray | None,
    anchors: dict[int, SymbolAndAddend],
) -> Relocated:  # fmt: skip
    """Apply a section's relocations to `data`, if given, except those with an unknown type or undefined symbol.

    `base`: the section's address. `symbols`: the symbols' addresses. Adds the first relocation to each address to `anchors`.
    """
    filled, unknown = Relocated(set(), set())
    section_offset, section_size = section.header.sh_offset, section.header.sh_size
    # A pc-relative field counts from its own address, base + offset; a start field of older assemblers from the section, base.
    offset_factor = 0 if starts_are_section_relative(elf, section) else 1
    types = {
        number: (kind.size, base * kind.pc_relative, offset_factor * kind.pc_relative, FIELDS[kind.size, elf.byte_order].pack_into)
        for number, kind in abi.relocations.items()
    }
    for offset, info, addend in relocation_rows(elf, section):
        relocation_type = types.get(info & 0xFFFFFFFF)
        symbol = info >> 32
        if info == 0:  # R_NONE
            if not any(elf.data[section_offset + offset : section_offset + offset + 4]):  # `lld -r` has dropped the code
                filled.add(offset)
            continue
        if relocation_type is None or symbol >= len(symbols):
            unknown.add(offset)
            continue
        size, origin, factor, write = relocation_type
        if offset + size > section_size:
            raise elf.error(f"relocation at {offset:#x} is outside of it", section.name)
        value = symbols[symbol]
        if value is None:
            unknown.add(offset)
            continue
        address = (value + addend) % ADDRESS_SPACE
        if data is not None:
            write(data, section_offset + offset, (address - origin - factor * offset) % (1 << 8 * size))
        filled.add(offset)
        if address not in anchors:
            anchors[address] = (symbol, addend)
    return Relocated(filled, unknown)


def _add_program_headers(elf: ElfFile, addresses: list[int], code: list[Section], data: bytearray) -> bytearray:
    """Turn `data` into a linked file: give section headers their addresses, and add a program header for each code section."""
    shdr, phdr = RECORDS[Shdr, elf.byte_order], RECORDS[Phdr, elf.byte_order]
    loads = sorted((addresses[section.number], section.header) for section in code)
    for section in elf.sections:
        header = section.header
        if header.sh_flags & SHF.ALLOC:
            header = header._replace(sh_addr=addresses[section.number])
        if section.number == 0:
            header = header._replace(sh_info=len(loads))
        shdr.pack_into(data, elf.header.e_shoff + section.number * SHDR_SIZE, *header)
    ehdr = elf.header._replace(
        e_type=ET.DYN, e_phoff=len(data) if loads else 0, e_phentsize=PHDR_SIZE, e_phnum=min(len(loads), PN_XNUM)
    )
    data[:EHDR_SIZE] = RECORDS[Ehdr, elf.byte_order].pack(*ehdr)
    for address, header in loads:
        data += phdr.pack(PT.LOAD, PF.R | PF.X, header.sh_offset, address, address, header.sh_size, header.sh_size, 1)
    return data
