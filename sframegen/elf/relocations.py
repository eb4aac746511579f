"""Reads relocations (their types: format/abi.py): those for one section as rows, dynamic ones of a linked file as columns."""

from __future__ import annotations

import sys
from array import array

from cfi.machine import Cursor
from sframegen.base.errors import FormatError
from sframegen.base.quick_typing import TYPE_CHECKING, Any, NamedTuple
from sframegen.elf.records import RECORDS, RELA_SIZE, SHT, ByteOrder, Rela

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.elf.file import ElfFile, Section

ADDRESS_SIZE = 8  # bytes
RELR_BITS = 63  # addresses that a bitmap in SHT_RELR covers
# The first number of SHT_CREL is count << 3 | CREL_ADDENDS if relocations have addends | number of low bits dropped from offsets.
CREL_COUNT_SHIFT, CREL_ADDENDS, CREL_SHIFT_MASK = 3, 4, 3
# The first byte of a relocation there: which fields differ from the previous relocation's, the low four bits of the difference of
# the offsets, and whether more bits of it follow.
CREL_SYMBOL, CREL_TYPE, CREL_ADDEND, CREL_OFFSET_SHIFT, CREL_OFFSET_MASK, CREL_MORE_OFFSET = 1, 2, 4, 3, 0x0F, 0x80
MAX_OFFSET = 1 << 60
MAX_WORD = 0xFFFFFFFF


class RelocationColumns(NamedTuple):
    """Relocations as columns, one for each field. All numbers are unsigned."""

    offset: array[int]
    info: array[int]
    addend: array[int]


def relocation_rows(elf: ElfFile, section: Section) -> Iterator[tuple[Any, ...]]:
    """Yield the relocations for a section as tuples of Rela's fields. Raises FormatError for unsupported types of section."""
    code = RECORDS[Rela, elf.byte_order]
    for table in elf.relocation_tables.get(section.number, ()):
        raw = elf.contents(table)
        if table.header.sh_type == SHT.RELA:
            yield from code.iter_unpack(raw[: len(raw) // RELA_SIZE * RELA_SIZE])
        elif table.header.sh_type == SHT.CREL:
            yield from _crel_rows(elf, table, raw)
        else:
            raise elf.error(f"relocations of section type {table.header.sh_type:#x}, which are not read", table.name)


def _crel_rows(elf: ElfFile, table: Section, raw: memoryview) -> Iterator[tuple[int, int, int]]:
    """Yield the relocations of an SHT_CREL section. Each is stored as its differences from the previous one."""
    cursor = Cursor(raw, address=0, big=False, text_base=0, data_base=0, memory=None)
    header = cursor.read_uleb()
    if not header & CREL_ADDENDS:
        raise elf.error("relocations with their addends in place, which are not read", table.name)
    offset = symbol = kind = addend = 0
    for _ in range(header >> CREL_COUNT_SHIFT):
        flags = cursor.read_unsigned(1)
        offset += flags >> CREL_OFFSET_SHIFT & CREL_OFFSET_MASK
        offset += cursor.read_uleb() << 4 if flags & CREL_MORE_OFFSET else 0
        symbol += cursor.read_sleb() if flags & CREL_SYMBOL else 0
        kind += cursor.read_sleb() if flags & CREL_TYPE else 0
        addend += cursor.read_sleb() if flags & CREL_ADDEND else 0
        if cursor.fault or offset >= MAX_OFFSET or not 0 <= symbol <= MAX_WORD or not 0 <= kind <= MAX_WORD:
            raise elf.error("a relocation is cut off or damaged", table.name, cursor.pos)
        yield offset << (header & CREL_SHIFT_MASK), symbol << 32 | kind, addend


def dynamic_relocations(elf: ElfFile) -> Iterator[tuple[Section | None, RelocationColumns]]:
    """Yield (symbol table section, relocations) for each dynamic relocation section, up to the file's size in total."""
    allowed = len(elf.data)
    for section in elf.sections:
        header = section.header
        if header.sh_type != SHT.RELA or header.sh_link >= len(elf.sections) or header.sh_size > allowed:
            continue
        allowed -= header.sh_size
        symbols = elf.sections[header.sh_link] if header.sh_link else None
        if symbols is None or symbols.header.sh_type == SHT.DYNSYM:
            yield symbols, unpack_columns(elf.contents(section), elf.byte_order)


def unpack_columns(raw: memoryview, byte_order: ByteOrder) -> RelocationColumns:
    """Return the Elf64_Rela entries in `raw` as columns; an incomplete last entry is ignored."""
    words = _words64(raw[: len(raw) // RELA_SIZE * RELA_SIZE], byte_order)
    return RelocationColumns(*(words[field :: len(Rela._fields)] for field in range(len(Rela._fields))))


def read_relr_addends(elf: ElfFile) -> Iterator[int]:
    """Yield the addends of packed relative relocations (SHT_RELR), which are the numbers at the relocated addresses."""
    table = next((section for section in elf.sections if section.header.sh_type == SHT.RELR), None)
    if table is None:
        return
    raw = elf.contents(table)
    position = 0
    for word in _words64(raw[: len(raw) // ADDRESS_SIZE * ADDRESS_SIZE], elf.byte_order):
        if word & 1:  # a bitmap for the addresses from `position` on; else the word is an address
            addresses = [position + ADDRESS_SIZE * bit for bit in range(RELR_BITS) if word >> bit + 1 & 1]
            position += RELR_BITS * ADDRESS_SIZE
        else:
            addresses = [word]
            position = word + ADDRESS_SIZE
        for address in addresses:
            try:
                yield int.from_bytes(elf.at(address, ADDRESS_SIZE), elf.byte_order)
            except FormatError:
                continue


def _words64(raw: memoryview, byte_order: ByteOrder) -> array[int]:
    words = array("Q", bytes(raw))
    if byte_order != sys.byteorder:
        words.byteswap()
    return words
