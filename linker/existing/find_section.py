"""A linked file -> the place of its SFrame section, whoever made it: the headers that name it, and how much room there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sframegen.elf.ranges import Extent, gaps, join
from sframegen.elf.records import PF, PT, SHF, SHT
from sframegen.format.locate import is_sframe_section, loaded_size

if TYPE_CHECKING:
    from sframegen.elf.file import ElfFile


SEVERAL = "more than one SFrame section, or headers that do not agree where it is"


class Place(NamedTuple):
    """The place of a section, and the headers that name it. Offset in the file, address as linked, sizes in bytes."""

    offset: int
    address: int
    size: int
    room: int  # the section, and the zeros after it that are loaded with it and belong to no other
    segments: list[int]  # numbers of program headers
    sections: list[int]  # numbers of section headers

    def __str__(self) -> str:
        return f".sframe: address {self.address:#x}, offset {self.offset:#x}, {self.size:#x} bytes, room for {self.room:#x}"


def find_place(elf: ElfFile) -> Place:
    """Raises FormatError if there is no section, or none that can be overwritten."""
    segments = [n for n, s in enumerate(elf.segments) if s.p_type == PT.GNU_SFRAME and s.p_filesz]
    sections = [s.number for s in elf.sections if is_sframe_section(s)]
    extents = [(elf.segments[n].p_offset, elf.segments[n].p_vaddr, elf.segments[n].p_filesz) for n in segments]
    headers = [elf.sections[n].header for n in sections]
    extents += [(header.sh_offset, header.sh_addr, header.sh_size) for header in headers]
    places = {(offset, address) for offset, address, _ in extents}
    if not places:
        raise elf.error("no SFrame section")
    if len(places) > 1:
        raise elf.error(SEVERAL)
    if any(header.sh_flags & SHF.COMPRESSED for header in headers):
        raise elf.error("the SFrame section is compressed")
    [(offset, address)] = places
    size = loaded_size(elf) or max(extent[2] for extent in extents)
    elf.slice(offset, size, "SFrame section")
    return Place(offset, address, size, size + free_after(elf, offset + size), segments, sections)


def free_after(elf: ElfFile, start: int) -> int:
    """Bytes from file offset `start` on that are zero, in the same PT_LOAD, and that no section header claims."""
    loads = [s for s in elf.segments if s.p_type == PT.LOAD and s.p_offset < start < s.p_offset + s.p_filesz]
    if not elf.sections or not loads:
        return 0
    end = min(load.p_offset + load.p_filesz for load in loads)
    headers = [s.header for s in elf.sections if s.header.sh_type != SHT.NOBITS]
    claimed = join(Extent(header.sh_offset, header.sh_offset + header.sh_size) for header in headers if header.sh_size)
    tables = [elf.header.e_phoff, elf.header.e_shoff, *(s.p_offset for s in elf.segments if s.p_filesz)]
    end = min([end, *(offset for offset in tables if offset >= start)])
    free = gaps(claimed, start, end)
    if not free or free[0][0] != start:
        return 0
    data = bytes(elf.data[slice(*free[0])])
    return len(data) - len(data.lstrip(b"\0"))


def extents(elf: ElfFile) -> list[Extent]:
    """File ranges that program and section headers name as SFrame sections, ascending."""
    places = [(s.p_offset, s.p_filesz) for s in elf.segments if s.p_type == PT.GNU_SFRAME and s.p_filesz]
    places += [(s.header.sh_offset, s.header.sh_size) for s in elf.sections if is_sframe_section(s)]
    return join(Extent(offset, offset + size, (".sframe",)) for offset, size in places)


def own_loads(elf: ElfFile) -> list[int]:
    """Numbers of read-only PT_LOADs that begin with an SFrame section: linkers put theirs among other sections."""
    starts = {s.p_vaddr for s in elf.segments if s.p_type == PT.GNU_SFRAME and s.p_filesz}
    starts |= {s.header.sh_addr for s in elf.sections if is_sframe_section(s) and s.header.sh_flags & SHF.ALLOC}
    loads = [(n, s) for n, s in enumerate(elf.segments) if s.p_type == PT.LOAD and s.p_flags == PF.R]
    return [number for number, load in loads if load.p_offset and load.p_vaddr in starts]
