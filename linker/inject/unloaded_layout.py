"""The unloaded layout: a section that is not mapped, after the file's end. No program header changes, and nothing moves.

Its address is 0, as of all sections that are not loaded; distances in it are from places in a section at that address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from linker.files.payload import check_end
from linker.files.refusals import Refusal, RefusedError
from linker.inject.image import check_header, check_sections
from linker.inject.layout import LayoutDraft
from sframegen.elf.ranges import align_up
from sframegen.elf.records import SHT_GNU_SFRAME, Shdr

if TYPE_CHECKING:
    from sframegen.elf.file import ElfFile

ADDRESS = 0
ALIGN = 8


def unloaded(elf: ElfFile, section_size: int, flags: int) -> LayoutDraft:
    """Raises FormatError or RefusedError with the reason if no section can be added. `flags`: SHF_COMPRESSED or 0."""
    check_header(elf, new_headers=0)
    check_sections(elf)
    check_end(elf)
    if not elf.sections:
        message = "no section headers, through which alone a section that is not loaded is found"
        raise RefusedError(Refusal.NO_ROOM, message, file=elf.name)
    offset = align_up(len(elf.data), ALIGN)
    section = Shdr(0, SHT_GNU_SFRAME, flags, ADDRESS, offset, section_size, 0, 0, ALIGN, 0)
    return LayoutDraft("unloaded", (), elf.header.e_phoff, elf.segments, [], section, offset + section_size, [], [], [])
