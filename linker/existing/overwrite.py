"""Overwrites the SFrame section of a linked file with another one, whoever made the old one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from linker.inject import undo_record
from linker.inject.undo_record import Write
from sframegen.base.errors import Refusal, RefusedError
from sframegen.elf.ranges import Extent, gaps, join
from sframegen.elf.records import PHDR_SIZE, SHDR_SIZE, Phdr, packed

if TYPE_CHECKING:
    from pathlib import Path

    from linker.existing.find_section import Place
    from linker.files.read_back import Reader
    from sframegen.base.columns import Bytes
    from sframegen.elf.file import ElfFile, Section


class Exchange(NamedTuple):
    """The writes that put a section of `size` bytes at `place`."""

    place: Place
    size: int
    writes: list[Write]

    def __str__(self) -> str:
        return "\n".join(map(str, [f"{self.place}, now {self.size:#x} bytes", *self.writes]))


def plan_exchange(elf: ElfFile, place: Place, section: Bytes, *, new_record: bool = False) -> Exchange:
    """Raises RefusedError if the section does not fit. `new_record`: the new file gets a record that restores this one."""
    size = len(section)
    if size > place.room:
        message = f"{size:,} bytes do not fit into the section's place, which has {place.room:,}"
        raise RefusedError(Refusal.NO_ROOM_IN_PLACE, message, file=elf.name)
    segments, sections = headers_for(elf, place, size)
    writes = [Write(place.offset, bytes(section).ljust(place.size, b"\0"))]
    writes += [Write(elf.header.e_phoff + n * PHDR_SIZE, packed([segments[n]], elf.byte_order)) for n in place.segments]
    writes += [Write(elf.header.e_shoff + n * SHDR_SIZE, packed([sections[n].header], elf.byte_order)) for n in place.sections]
    record = [Write(len(elf.data), undo_record.record(elf.data, writes))] if new_record else updated_record(elf, writes)
    return Exchange(place, size, writes + record)


def headers_for(elf: ElfFile, place: Place, size: int) -> tuple[list[Phdr], list[Section]]:
    """Return the file's program and section headers with the new size of its SFrame section."""
    segments, sections = elf.segments[:], elf.sections[:]
    for number in place.segments:
        segments[number] = segments[number]._replace(p_filesz=size, p_memsz=size)
    for number in place.sections:
        sections[number] = sections[number]._replace(header=sections[number].header._replace(sh_size=size))
    return segments, sections


def updated_record(elf: ElfFile, writes: list[Write]) -> list[Write]:
    """If the file ends in a valid record: the record for the new file. It still restores the original."""
    record = undo_record.read(elf.data)
    if record is None:
        return []
    covered = join(Extent(start, end) for start, end in record.covered)
    if any(gaps(covered, offset, offset + len(data)) for offset, data in writes):
        message = "the section is a part of the file that sframegen changed, and what it would restore"
        raise RefusedError(Refusal.NO_ROOM_IN_PLACE, message, file=elf.name)
    new = [after(writes, start, elf.data[start:end]) for start, end in record.covered]
    return [Write(record.start, undo_record.pack(record, new))]


def after(writes: list[Write], start: int, old: memoryview) -> bytearray:
    """Return the bytes from file offset `start` on after these writes."""
    new, end = bytearray(old), start + len(old)
    for offset, data in writes:
        low, high = max(start, offset), min(end, offset + len(data))
        if low < high:
            new[low - start : high - start] = data[low - offset : high - offset]
    return new


def verify_exchange(exchange: Exchange, elf: ElfFile, result: Path, reader: Reader) -> list[str]:
    """Return the findings about the file at `result`, which the reader reads, too."""
    from linker.inject.verify import verify_writes  # noqa: PLC0415 - only where results are read back

    return verify_writes(elf, *headers_for(elf, exchange.place, exchange.size), exchange.writes, result, reader)
