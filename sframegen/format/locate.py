"""A linked file -> its SFrame section."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from sframegen.elf.records import ET, PT, SHF, SHT
from sframegen.format.decode import decode, open_section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.elf.file import ElfFile, Section
    from sframegen.format.decode import SframeSection

ZEROS = re.compile(rb"\0*")


def sframe_of(elf: ElfFile) -> tuple[memoryview, int] | None:
    """Bytes and link-time address of what PT_GNU_SFRAME covers, else of the section of that name or type; None without either.

    Raises FormatError for a relocatable object, whose functions have no addresses yet. Both are empty in a separate debug file.
    """
    for segment in elf.segments:
        if segment.p_type == PT.GNU_SFRAME and segment.p_filesz:
            return elf.slice(segment.p_offset, segment.p_filesz, "PT_GNU_SFRAME"), segment.p_vaddr
    for section in elf.sections:
        if is_sframe_section(section):
            if elf.header.e_type == ET.REL:
                raise elf.error("an object: its functions have no addresses yet; sframegen dump and lookup read it", section.name)
            return elf.contents(section), section.header.sh_addr
    return None


def is_sframe_section(section: Section) -> bool:
    kind = section.header.sh_type
    return kind == SHT.GNU_SFRAME or (section.name == ".sframe" and kind != SHT.NOBITS)


def loaded_size(elf: ElfFile) -> int:
    """Bytes of the loaded section, as its header says; 0 without one. GNU ld's segment may be longer: it never wrote the rest."""
    loaded = (s.header for s in elf.sections if is_sframe_section(s) and s.header.sh_flags & SHF.ALLOC)
    return max((header.sh_size for header in loaded), default=0)


def unloaded_of(elf: ElfFile) -> Section | None:
    """Return the section that `sframe_of` reads if no segment has it, as its flags say; None if it is loaded or there is none."""
    if any(segment.p_type == PT.GNU_SFRAME and segment.p_filesz for segment in elf.segments):
        return None
    section = next(filter(is_sframe_section, elf.sections), None)
    return None if section is None or section.header.sh_flags & SHF.ALLOC else section


def open_sframe(elf: ElfFile) -> SframeSection:
    """The file's section, of which only the header is read. Raises FormatError where it has none."""
    return open_section(*_found(elf))


def read_sframe(elf: ElfFile) -> SframeSection:
    """The file's section, decoded. Raises FormatError where it has none."""
    return decode(*_found(elf))


def read_pieces(elf: ElfFile) -> list[SframeSection]:
    """Return the parts of the file's section, if a linker that does not know SFrame joined several; decoded on demand.

    Nearly always it is one. Raises FormatError where there is none, or where a header is bad.
    """
    data, address = _found(elf)
    data = data[: loaded_size(elf) or len(data)]
    return list(joined_sections(data, address)) or [open_section(data, address)]  # raises: an empty section is an error


def joined_sections(data: memoryview, address: int) -> Iterator[SframeSection]:
    """Yield the sections that follow one another, with zeros between them; only headers are read. Raises FormatError."""
    at = 0
    while at < len(data):
        piece = open_section(data[at:], address + at)
        yield replace(piece, data=piece.data[: piece.end])
        at += piece.end
        padding = ZEROS.match(data, at)
        at = padding.end() if padding else at


def _found(elf: ElfFile) -> tuple[memoryview, int]:
    found = sframe_of(elf)
    if found is None:
        raise elf.error("no SFrame section")
    return found
