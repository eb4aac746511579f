"""Puts another SFrame section in the place of the one that a linked file has, whoever wrote that."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from linker.inject import undo_record
from linker.inject.undo_record import Write
from linker.refusals import Refusal, RefusedError
from sframegen.elf.file import (
    PHDR_SIZE,
    PT_GNU_SFRAME,
    PT_LOAD,
    RECORDS,
    SHDR_SIZE,
    SHF_COMPRESSED,
    SHT_GNU_SFRAME,
    SHT_NOBITS,
    Phdr,
    Section,
    Shdr,
)
from sframegen.elf.ranges import Range, gaps, join

if TYPE_CHECKING:
    from pathlib import Path

    from sframegen.elf.file import ElfFile


class Place(NamedTuple):
    """Where a section is, and which headers say so. Offset in the file, address as linked, sizes in bytes."""

    offset: int
    address: int
    size: int
    room: int  # the section, and zeros behind it that are loaded with it and belong to no other
    segments: list[int]  # numbers of program headers
    sections: list[int]  # numbers of section headers

    def __str__(self) -> str:
        return f".sframe: address {self.address:#x}, offset {self.offset:#x}, {self.size:#x} bytes, room for {self.room:#x}"


class Exchange(NamedTuple):
    """What changes in the file so that a section of `size` bytes is at `place`."""

    place: Place
    size: int
    writes: list[Write]

    def __str__(self) -> str:
        return "\n".join(map(str, [f"{self.place}, now {self.size:#x} bytes", *self.writes]))


def find_place(elf: ElfFile) -> Place:
    """Raises FormatError where there is no section, or none that can be written over."""
    segments = [n for n, s in enumerate(elf.segments) if s.p_type == PT_GNU_SFRAME and s.p_filesz]
    sections = [s.number for s in elf.sections if is_sframe(s)]
    extents = [(elf.segments[n].p_offset, elf.segments[n].p_vaddr, elf.segments[n].p_filesz) for n in segments]
    headers = [elf.sections[n].header for n in sections]
    extents += [(header.sh_offset, header.sh_addr, header.sh_size) for header in headers]
    places = {(offset, address) for offset, address, _ in extents}
    if not places:
        raise elf.error("no SFrame section")
    if len(places) > 1:
        raise elf.error("more than one SFrame section, or headers that do not agree where it is")
    if any(header.sh_flags & SHF_COMPRESSED for header in headers):
        raise elf.error("the SFrame section is compressed")
    [(offset, address)] = places
    size = max(extent[2] for extent in extents)  # GNU ld keeps more in the segment than it fills
    elf.slice(offset, size, "SFrame section")
    return Place(offset, address, size, size + free_behind(elf, offset + size), segments, sections)


def is_sframe(section: Section) -> bool:
    kind = section.header.sh_type
    return kind == SHT_GNU_SFRAME or (section.name == ".sframe" and kind != SHT_NOBITS)


def free_behind(elf: ElfFile, start: int) -> int:
    """Bytes from file offset `start` on that are zero, in the same PT_LOAD, and that no section header claims."""
    loads = [s for s in elf.segments if s.p_type == PT_LOAD and s.p_offset < start < s.p_offset + s.p_filesz]
    if not elf.sections or not loads:
        return 0
    end = min(load.p_offset + load.p_filesz for load in loads)
    headers = [s.header for s in elf.sections if s.header.sh_type != SHT_NOBITS]
    claimed = join(Range(header.sh_offset, header.sh_offset + header.sh_size, ()) for header in headers if header.sh_size)
    tables = [elf.header.e_phoff, elf.header.e_shoff, *(s.p_offset for s in elf.segments if s.p_filesz)]
    end = min([end, *(offset for offset in tables if offset >= start)])
    free = gaps(claimed, start, end)
    if not free or free[0][0] != start:
        return 0
    data = bytes(elf.data[slice(*free[0])])
    return len(data) - len(data.lstrip(b"\0"))


def plan_exchange(elf: ElfFile, place: Place, section: bytes | bytearray, *, new_record: bool = False) -> Exchange:
    """Raises FormatError where the section does not fit. `new_record`: the new file gives this one back, which has none."""
    size = len(section)
    if size > place.room:
        message = f"{size:,} bytes do not fit into the section's place, which has {place.room:,}"
        raise RefusedError(Refusal.NO_ROOM_IN_PLACE, message, file=elf.name)
    segments, sections = headers_for(elf, place, size)
    phdr, shdr = RECORDS[Phdr, elf.byte_order], RECORDS[Shdr, elf.byte_order]
    writes = [Write(place.offset, bytes(section).ljust(place.size, b"\0"))]
    writes += [Write(elf.header.e_phoff + n * PHDR_SIZE, phdr.pack(*segments[n])) for n in place.segments]
    writes += [Write(elf.header.e_shoff + n * SHDR_SIZE, shdr.pack(*sections[n].header)) for n in place.sections]
    record = [Write(len(elf.data), undo_record.record(elf.data, writes))] if new_record else updated_record(elf, writes)
    return Exchange(place, size, writes + record)


def headers_for(elf: ElfFile, place: Place, size: int) -> tuple[list[Phdr], list[Section]]:
    """The file's program and section headers, those of its SFrame section for one of that size."""
    segments, sections = elf.segments[:], elf.sections[:]
    for number in place.segments:
        segments[number] = segments[number]._replace(p_filesz=size, p_memsz=size)
    for number in place.sections:
        sections[number] = sections[number]._replace(header=sections[number].header._replace(sh_size=size))
    return segments, sections


def updated_record(elf: ElfFile, writes: list[Write]) -> list[Write]:
    """The record at the file's end, if it has a valid one, for the file as it becomes: it still gives back the original."""
    record = undo_record.read(elf.data)
    if record is None:
        return []
    recorded = join(Range(offset, offset + len(old), ()) for offset, old in record.old)
    if any(gaps(recorded, offset, min(offset + len(data), record.original_size)) for offset, data in writes):
        message = "the section is a part of the file that sframegen changed, and what it would restore"
        raise RefusedError(Refusal.NO_ROOM_IN_PLACE, message, file=elf.name)
    ranges = [*((offset, offset + len(old)) for offset, old in record.old), (record.original_size, record.start)]
    new = undo_record.contents([*(Write(start, elf.data[start:end]) for start, end in ranges), *writes])
    return [Write(record.start, undo_record.pack(record.original_size, record.old, [data for _, data in new]))]


def verify_exchange(exchange: Exchange, elf: ElfFile, result: Path) -> list[str]:
    """What is wrong with the file at `result`, one finding a line; LIEF reads it too."""
    from linker.inject.verify import verify_writes  # noqa: PLC0415 - LIEF takes longer to import than most files to change

    return verify_writes(elf, *headers_for(elf, exchange.place, exchange.size), exchange.writes, result)
