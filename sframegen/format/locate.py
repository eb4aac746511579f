"""Finds the SFrame section of a linked file."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from sframegen.elf.records import ET, PT, SHF, SHT
from sframegen.format.decode import SframeSection, decode, open_section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.elf.file import ElfFile, Section

IMAGE_SECTION = (
    ".image_sframe"  # of a kernel, or another image that a linker script lays out; GNU ld rewrites sections named .sframe
)
NAMES = (".sframe", IMAGE_SECTION)
ZEROS = re.compile(rb"\0*")


def find_sframe(elf: ElfFile) -> tuple[memoryview, int] | None:
    """Return bytes and link-time address of the segment PT_GNU_SFRAME, else of the section with that name or type, or None.

    Both are empty in a separate debug file. Raises FormatError for a relocatable object, whose functions have no addresses yet.
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
    """True for a section of type SHT_GNU_SFRAME, or with one of the names, and bytes in the file."""
    kind = section.header.sh_type
    return kind == SHT.GNU_SFRAME or (section.name in NAMES and kind != SHT.NOBITS)


def loaded_size(elf: ElfFile) -> int:
    """Return the bytes of the loaded section by its header, or 0. GNU ld may make the segment longer, without data at its end."""
    loaded = (s.header for s in elf.sections if is_sframe_section(s) and s.header.sh_flags & SHF.ALLOC)
    return max((header.sh_size for header in loaded), default=0)


def find_unloaded_section(elf: ElfFile) -> Section | None:
    """Return the section that `sframe_of` reads if its flags say that it is not loaded; None if it is loaded or there is none."""
    if any(segment.p_type == PT.GNU_SFRAME and segment.p_filesz for segment in elf.segments):
        return None
    section = next(filter(is_sframe_section, elf.sections), None)
    return None if section is None or section.header.sh_flags & SHF.ALLOC else section


def open_sframe(elf: ElfFile) -> SframeSection:
    """Open the file's section: only its header is read. Raises FormatError if it has none."""
    return open_section(*_find_section(elf))


def read_sframe(elf: ElfFile) -> SframeSection:
    """Decode the file's section. Raises FormatError if it has none."""
    return decode(*_find_section(elf))


def open_joined_sections(elf: ElfFile) -> list[SframeSection]:
    """Return the parts of the file's section, if a linker that does not know SFrame joined several; decoded on demand.

    There is nearly always one part. Raises FormatError if there is no section, or a header is bad.
    """
    data, address = _find_section(elf)
    data = data[: loaded_size(elf) or len(data)]
    return list(split_joined_sections(data, address)) or [open_section(data, address)]  # raises: an empty section is an error


def split_joined_sections(data: memoryview, address: int) -> Iterator[SframeSection]:
    """Yield sections stored one after another, with zeros between them. Only headers are read. Raises FormatError for a bad one."""
    at = 0
    while at < len(data):
        piece = open_section(data[at:], address + at)
        yield replace(piece, data=piece.data[: piece.end])
        at += piece.end
        padding = ZEROS.match(data, at)
        at = padding.end() if padding else at


def _find_section(elf: ElfFile) -> tuple[memoryview, int]:
    found = find_sframe(elf)
    if found is None:
        raise elf.error("no SFrame section")
    return found
