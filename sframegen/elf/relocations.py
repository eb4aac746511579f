"""Relocations: one section's, as records; the dynamic ones of a linked file, as columns."""

from __future__ import annotations

import sys
from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

from cfi.errors import FormatError
from sframegen.elf.records import RECORDS, RELA_SIZE, SHT_DYNSYM, SHT_RELA, Rela

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.elf.file import ElfFile, Section
    from sframegen.elf.records import ByteOrder

SHT_RELR = 19
RELR_BITS = 63  # words that a bitmap of SHT_RELR covers


class RelocationColumns(NamedTuple):
    """The fields of relocations, as unsigned numbers."""

    offset: array[int]
    info: array[int]
    addend: array[int]


def relocations(elf: ElfFile, section: Section) -> Iterator[Rela]:
    """Yield the relocations that apply to a section."""
    return map(Rela._make, relocation_rows(elf, section))


def relocation_rows(elf: ElfFile, section: Section) -> Iterator[tuple[Any, ...]]:
    """The same as plain tuples, which take a third of the time."""
    code = RECORDS[Rela, elf.byte_order]
    for table in elf.relocation_tables.get(section.number, ()):
        raw = elf.contents(table)
        yield from code.iter_unpack(raw[: len(raw) // RELA_SIZE * RELA_SIZE])


def dynamic_relocations(elf: ElfFile) -> Iterator[tuple[Section | None, RelocationColumns]]:
    """(section of symbols, relocations) of the sections of dynamic relocations, no more bytes than the file has."""
    left = len(elf.data)
    for section in elf.sections:
        header = section.header
        if header.sh_type != SHT_RELA or header.sh_link >= len(elf.sections) or header.sh_size > left:
            continue
        left -= header.sh_size
        symbols = elf.sections[header.sh_link] if header.sh_link else None
        if symbols is None or symbols.header.sh_type == SHT_DYNSYM:
            yield symbols, columns(elf.contents(section), elf.byte_order)


def columns(raw: memoryview, byte_order: ByteOrder) -> RelocationColumns:
    """The complete entries of a table of relocations."""
    words = _words(raw[: len(raw) // RELA_SIZE * RELA_SIZE], byte_order)
    return RelocationColumns(*(words[field :: len(Rela._fields)] for field in range(len(Rela._fields))))


def packed_addends(elf: ElfFile) -> Iterator[int]:
    """Yield the numbers in the file to which the packed relative relocations (SHT_RELR) add the base."""
    table = next((section for section in elf.sections if section.header.sh_type == SHT_RELR), None)
    if table is None:
        return
    raw = elf.contents(table)
    here = 0
    for word in _words(raw[: len(raw) // 8 * 8], elf.byte_order):
        if word & 1:  # a bitmap of the words from here on
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


def _words(raw: memoryview, byte_order: ByteOrder) -> array[int]:
    words = array("Q", bytes(raw))
    if byte_order != sys.byteorder:
        words.byteswap()
    return words
