"""Finds and opens the SFrame section of a linked file."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from sframegen.elf.records import ET, PT, SHF, SHT
from sframegen.format.decode import SframeSection, decode, open_section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.elf.file import ElfFile, Section

# The section's name in a kernel, or another image that a linker script lays out, because GNU ld rewrites sections named .sframe.
IMAGE_SECTION = ".image_sframe"
NAMES = (".sframe", IMAGE_SECTION)
ZEROS = re.compile(rb"\0*")


def find_sframe(elf: ElfFile) -> tuple[memoryview, int] | None:
    """Return (bytes, link-time address) of PT_GNU_SFRAME or, without that segment, of the section with the type or a name; or None.

    Separate debug files have neither. Raises FormatError for a relocatable object, whose functions have no addresses yet.
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
    """True if the section has type SHT_GNU_SFRAME, or one of the names and bytes in the file."""
    kind = section.header.sh_type
    return kind == SHT.GNU_SFRAME or (section.name in NAMES and kind != SHT.NOBITS)


def loaded_size(elf: ElfFile) -> int:
    """Return the loaded section's size by its header, or 0. GNU ld may make the segment longer, with unused bytes at its end."""
    loaded = (s.header for s in elf.sections if is_sframe_section(s) and s.header.sh_flags & SHF.ALLOC)
    return max((header.sh_size for header in loaded), default=0)


def find_unloaded_section(elf: ElfFile) -> Section | None:
    """Return the section that `find_sframe` reads if it is not loaded, by its flags; None if it is loaded or there is none."""
    if any(segment.p_type == PT.GNU_SFRAME and segment.p_filesz for segment in elf.segments):
        return None
    section = next(filter(is_sframe_section, elf.sections), None)
    return None if section is None or section.header.sh_flags & SHF.ALLOC else section


def open_sframe(elf: ElfFile) -> SframeSection:
    """Open the file's section, reading only its header. Raises FormatError if there is none."""
    return open_section(*_find_section(elf))


def read_sframe(elf: ElfFile) -> SframeSection:
    """Decode the file's section completely. Raises FormatError if there is none."""
    return decode(*_find_section(elf))


def open_joined_sections(elf: ElfFile) -> list[SframeSection]:
    """Return the SFrame sections in the file's section: nearly always one, or several that a linker without SFrame support joined.

    They are decoded on demand. Raises FormatError if there is no section, or a header is bad.
    """
    data, address = _find_section(elf)
    data = data[: loaded_size(elf) or len(data)]
    return list(split_joined_sections(data, address)) or [open_section(data, address)]  # an empty section raises the error here


def split_joined_sections(data: memoryview, address: int) -> Iterator[SframeSection]:
    """Yield sections that are stored one after the other, with zeros in between. Reads only headers; FormatError for a bad one."""
    offset = 0
    while offset < len(data):
        section = open_section(data[offset:], address + offset)
        yield replace(section, data=section.data[: section.end])
        offset += section.end
        padding = ZEROS.match(data, offset)
        offset = padding.end() if padding else offset


def _find_section(elf: ElfFile) -> tuple[memoryview, int]:
    found = find_sframe(elf)
    if found is None:
        raise elf.error("no SFrame section")
    return found
