"""Removes an SFrame section from a linked file without an undo record, which only changes headers and the section's own bytes.

Nothing moves. The section's bytes become zeros, and PT_GNU_SFRAME becomes PT_NULL, as does the section's PT_LOAD if it maps
nothing else. The section header is removed, or becomes SHT_NULL if a symbol refers to a later section by its number.
"""

from __future__ import annotations

from bisect import bisect_left

from linker.existing.in_place import find_own_loads, find_sframe_extents
from linker.inject import undo_record
from linker.inject.image import image_end
from linker.inject.section_table import renumber_header
from linker.inject.undo_record import Write
from sframegen.base.quick_typing import NamedTuple
from sframegen.elf.dynamic import read_dynamic
from sframegen.elf.file import ElfFile, Section
from sframegen.elf.ranges import Extent, find_gaps, find_overlapping, join_extents
from sframegen.elf.records import EHDR_SIZE, PHDR_SIZE, PT, SHDR_SIZE, SHF, SHT, UNUSED_SECTION, UNUSED_SEGMENT, Phdr, pack_records
from sframegen.elf.symbols import SymbolTable, symbol_tables
from sframegen.format.layouts import MAGIC
from sframegen.format.locate import is_sframe_section


class Removal(NamedTuple):
    """A plan to remove a section: the writes, and the file's headers after them."""

    segments: list[Phdr]
    sections: list[Section]
    writes: list[Write]

    def __str__(self) -> str:
        return "\n".join(map(str, self.writes))


def plan_removal(elf: ElfFile) -> Removal:
    """Plan to remove the SFrame section and its headers. Bytes are kept if other headers include them, or without SFrame magic."""
    segments = [UNUSED_SEGMENT if s.p_type == PT.GNU_SFRAME else s for s in elf.segments]
    sections = remove_section_headers(elf)
    used = find_ranges_in_headers(elf, segments, sections)  # by the headers that stay
    compressed = {s.header.sh_offset for s in elf.sections if is_sframe_section(s) and s.header.sh_flags & SHF.COMPRESSED}
    cleared = [
        Extent(*hole)
        for extent in find_sframe_extents(elf)
        if extent.start in compressed or int.from_bytes(elf.data[extent.start : extent.start + 2], elf.byte_order) == MAGIC
        for hole in find_gaps(used, extent.start, min(extent.end, len(elf.data)))
    ]
    loads = find_own_loads(elf)
    if sum(segments[number].p_filesz for number in loads) > len(elf.data):
        raise elf.error(f"{len(loads)} segments of SFrame sections overlap", "program header table")
    tag_values = sorted(entry.value for entry in read_dynamic(elf))
    for number in loads:
        if is_unused_load(elf, segments[number], used, cleared, tag_values):
            segments[number] = UNUSED_SEGMENT
    record = undo_record.read_unverified(elf.data)
    if record is not None and record.start >= image_end(elf):  # invalid from now on, and it would look like appended data
        cleared.append(Extent(record.start, len(elf.data)))
    writes = [Write(item.start, bytes(item.size)) for item in cleared]
    writes += [
        Write(elf.header.e_phoff + number * PHDR_SIZE, pack_records([segment], elf.byte_order))
        for number, segment in enumerate(segments)
        if segment != elf.segments[number]
    ]
    if sections != elf.sections:
        table = pack_records([section.header for section in sections], elf.byte_order).ljust(elf.shnum * SHDR_SIZE, b"\0")
        writes.append(Write(elf.header.e_shoff, table))
    if len(sections) < elf.shnum:
        names = elf.shstrndx - sum(is_sframe_section(section) for section in elf.sections[: elf.shstrndx])
        header = elf.header._replace(e_shnum=len(sections), e_shstrndx=names)
        writes.append(Write(0, pack_records([header], elf.byte_order)))
    return Removal(segments, sections, writes)


def remove_section_headers(elf: ElfFile) -> list[Section]:
    """Return the file's sections without SFrame sections, or with unused headers in their place if numbers must not change."""
    removed = [section.number for section in elf.sections if is_sframe_section(section)]
    if not removed:
        return elf.sections
    if (
        elf.header.e_shnum != elf.shnum
        or elf.header.e_shstrndx != elf.shstrndx
        or are_referred_to_by_number(elf, range(removed[0], elf.shnum))
    ):
        return [s._replace(name="", header=UNUSED_SECTION) if is_sframe_section(s) else s for s in elf.sections]
    kept = [section for section in elf.sections if not is_sframe_section(section)]
    numbers = {old.number: new for new, old in enumerate(kept)} | dict.fromkeys(removed, 0)
    return [Section(new, old.name, renumber_header(old.header, numbers)) for new, old in enumerate(kept)]


def are_referred_to_by_number(elf: ElfFile, sections: range) -> bool:
    """Return True if a symbol refers to any of these sections by number, or the file has section groups."""
    tables = [SymbolTable(elf, section, elf.stored_contents(section)) for section in symbol_tables(elf)]
    first_symbols = (next(table.defined_in(sections), None) for table in tables)
    return any(s.header.sh_type == SHT.GROUP for s in elf.sections) or any(symbol is not None for symbol in first_symbols)


def find_ranges_in_headers(elf: ElfFile, segments: list[Phdr], sections: list[Section]) -> list[Extent]:
    """Return the file ranges of headers, sections, and segments other than PT_LOADs."""
    header = elf.header
    ranges = [
        Extent(0, EHDR_SIZE),
        Extent(header.e_phoff, header.e_phoff + elf.phnum * PHDR_SIZE),
        Extent(header.e_shoff, header.e_shoff + elf.shnum * SHDR_SIZE),
    ]
    ranges += [s.extent for s in segments if s.p_type != PT.LOAD]
    ranges += [section.header.extent for section in sections if section.header.sh_type != SHT.NOBITS]
    return join_extents(item for item in ranges if item.size)


def is_unused_load(elf: ElfFile, load: Phdr, used: list[Extent], cleared: list[Extent], tag_values: list[int]) -> bool:
    """Return True if no header or dynamic tag refers to the PT_LOAD, and its bytes are zero or cleared. `tag_values`: ascending."""
    start, end = load.extent[:2]
    tag_count = bisect_left(tag_values, load.p_vaddr + load.p_memsz) - bisect_left(tag_values, load.p_vaddr)
    is_used = find_overlapping(used, start, end) or tag_count
    return not is_used and not any(bytes(elf.data[slice(*kept)]).strip(b"\0") for kept in find_gaps(cleared, start, end))
