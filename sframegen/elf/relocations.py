"""Reads relocations: those of one section as records, and the dynamic ones of a linked file as columns."""

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

RELR_BITS = 63  # words that a bitmap in SHT_RELR covers
CREL_ADDENDS = 4  # flag in SHT_CREL's first number: relocations have addends
MAX_OFFSET = 1 << 60
WORD32 = 0xFFFFFFFF


class RelocationColumns(NamedTuple):
    """Relocations as columns of unsigned numbers, one for each field."""

    offset: array[int]
    info: array[int]
    addend: array[int]


def relocation_rows(elf: ElfFile, section: Section) -> Iterator[tuple[Any, ...]]:
    """Yield the relocations for a section as tuples of Rela's fields. Raises FormatError for unsupported relocation types."""
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
    """Yield the relocations of an SHT_CREL section: a count with flags, then each relocation's differences from the one before."""
    cursor = Cursor(raw, 0, False, 0, 0, None)
    head = cursor.read_uleb()
    if not head & CREL_ADDENDS:
        raise elf.error("relocations with their addends in place, which are not read", table.name)
    offset = symbol = kind = addend = 0
    for _ in range(head >> 3):
        first = cursor.read_unsigned(1)  # three flags, and the lowest bits of the offset's difference
        offset += (first & 0x7F) >> 3
        offset += cursor.read_uleb() << 4 if first & 0x80 else 0
        symbol += cursor.read_sleb() if first & 1 else 0
        kind += cursor.read_sleb() if first & 2 else 0
        addend += cursor.read_sleb() if first & 4 else 0
        if cursor.fault or offset >= MAX_OFFSET or not 0 <= symbol <= WORD32 or not 0 <= kind <= WORD32:
            raise elf.error("a relocation is cut off or damaged", table.name, cursor.pos)
        yield offset << (head & 3), symbol << 32 | kind, addend


def dynamic_relocations(elf: ElfFile) -> Iterator[tuple[Section | None, RelocationColumns]]:
    """Yield (symbol table section, relocations) for each dynamic relocation section, together at most the file's size."""
    left = len(elf.data)
    for section in elf.sections:
        header = section.header
        if header.sh_type != SHT.RELA or header.sh_link >= len(elf.sections) or header.sh_size > left:
            continue
        left -= header.sh_size
        symbols = elf.sections[header.sh_link] if header.sh_link else None
        if symbols is None or symbols.header.sh_type == SHT.DYNSYM:
            yield symbols, unpack_columns(elf.contents(section), elf.byte_order)


def unpack_columns(raw: memoryview, byte_order: ByteOrder) -> RelocationColumns:
    """Return a relocation table's complete entries as columns."""
    words = _words64(raw[: len(raw) // RELA_SIZE * RELA_SIZE], byte_order)
    return RelocationColumns(*(words[field :: len(Rela._fields)] for field in range(len(Rela._fields))))


def read_relr_addends(elf: ElfFile) -> Iterator[int]:
    """Yield the addends of packed relative relocations (SHT_RELR), which are the numbers at the relocated places."""
    table = next((section for section in elf.sections if section.header.sh_type == SHT.RELR), None)
    if table is None:
        return
    raw = elf.contents(table)
    here = 0
    for word in _words64(raw[: len(raw) // 8 * 8], elf.byte_order):
        if word & 1:  # a bitmap for the words from `here` on
            places = [here + 8 * bit for bit in range(RELR_BITS) if word >> bit + 1 & 1]
            here += RELR_BITS * 8
        else:
            places = [word]
            here = word + 8
        for place in places:
            try:
                yield int.from_bytes(elf.at(place, 8), elf.byte_order)
            except FormatError:
                continue


def _words64(raw: memoryview, byte_order: ByteOrder) -> array[int]:
    words = array("Q", bytes(raw))
    if byte_order != sys.byteorder:
        words.byteswap()
    return words
