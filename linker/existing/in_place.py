"""Locates the SFrame section of a linked file, whichever tool wrote it, and plans to overwrite it with another one."""

from __future__ import annotations

from linker.inject import undo_record
from linker.inject.undo_record import Write
from sframegen.base.errors import Refusal, RefusedError
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.elf.ranges import Extent, find_gaps, join_extents
from sframegen.elf.records import PF, PHDR_SIZE, PT, SHDR_SIZE, SHF, SHT, Phdr, pack_records
from sframegen.format.locate import is_sframe_section, loaded_size

if TYPE_CHECKING:
    from pathlib import Path

    from linker.files.read_back import Reader
    from sframegen.base.columns import Bytes
    from sframegen.elf.file import ElfFile, Section

SEVERAL_SECTIONS = "more than one SFrame section, or headers that do not agree where it is"


class Slot(NamedTuple):
    """The file offset and link-time address of a section, and the headers that describe it. Sizes are in bytes."""

    offset: int
    address: int
    size: int
    room: int  # the section's size, plus the loaded zeros after it that belong to no other section
    segments: list[int]  # numbers of its program headers
    sections: list[int]  # numbers of its section headers

    def __str__(self) -> str:
        return f".sframe: address {self.address:#x}, offset {self.offset:#x}, {self.size:#x} bytes, room for {self.room:#x}"


def find_slot(elf: ElfFile) -> Slot:
    """Locate the SFrame section of a file. Raises FormatError if it has none that can be overwritten."""
    segments = [n for n, s in enumerate(elf.segments) if s.p_type == PT.GNU_SFRAME and s.p_filesz]
    sections = [s.number for s in elf.sections if is_sframe_section(s)]
    ranges = ranges_in_sframe_headers(elf)
    starts = {(offset, address) for offset, address, _ in ranges}
    if not starts:
        raise elf.error("no SFrame section")
    if len(starts) > 1:
        raise elf.error(SEVERAL_SECTIONS)
    if any(elf.sections[n].header.sh_flags & SHF.COMPRESSED for n in sections):
        raise elf.error("the SFrame section is compressed")
    [(offset, address)] = starts
    size = loaded_size(elf) or max(size for _, _, size in ranges)
    elf.slice(offset, size, "SFrame section")
    return Slot(offset, address, size, size + count_free_bytes(elf, offset + size), segments, sections)


def ranges_in_sframe_headers(elf: ElfFile) -> list[tuple[int, int, int]]:
    """Return (file offset, address, size) from each program and section header of an SFrame section."""
    segments = [(s.p_offset, s.p_vaddr, s.p_filesz) for s in elf.segments if s.p_type == PT.GNU_SFRAME and s.p_filesz]
    headers = [section.header for section in elf.sections if is_sframe_section(section)]
    return segments + [(header.sh_offset, header.sh_addr, header.sh_size) for header in headers]


def find_sframe_extents(elf: ElfFile) -> list[Extent]:
    """Return the file ranges of SFrame sections according to program and section headers, ascending."""
    return join_extents(Extent(offset, offset + size, (".sframe",)) for offset, _, size in ranges_in_sframe_headers(elf))


def count_free_bytes(elf: ElfFile, start: int) -> int:
    """Return the number of zero bytes from file offset `start` on that are in the same PT_LOAD and in no section."""
    loads = [s for s in elf.segments if s.p_type == PT.LOAD and s.p_offset < start < s.p_offset + s.p_filesz]
    if not elf.sections or not loads:
        return 0
    end = min(load.p_offset + load.p_filesz for load in loads)
    claimed = join_extents(s.header.extent for s in elf.sections if s.header.sh_type != SHT.NOBITS and s.header.sh_size)
    tables = [elf.header.e_phoff, elf.header.e_shoff, *(s.p_offset for s in elf.segments if s.p_filesz)]
    end = min([end, *(offset for offset in tables if offset >= start)])
    free = find_gaps(claimed, start, end)
    if not free or free[0][0] != start:
        return 0
    data = bytes(elf.data[slice(*free[0])])
    return len(data) - len(data.lstrip(b"\0"))


def find_own_loads(elf: ElfFile) -> list[int]:
    """Return the numbers of read-only PT_LOADs that begin with an SFrame section. We add such PT_LOADs; linkers do not."""
    starts = {s.p_vaddr for s in elf.segments if s.p_type == PT.GNU_SFRAME and s.p_filesz}
    starts |= {s.header.sh_addr for s in elf.sections if is_sframe_section(s) and s.header.sh_flags & SHF.ALLOC}
    loads = [(n, s) for n, s in enumerate(elf.segments) if s.p_type == PT.LOAD and s.p_flags == PF.R]
    return [number for number, load in loads if load.p_offset and load.p_vaddr in starts]


class Exchange(NamedTuple):
    """A plan to exchange a section: the writes that put a section of `size` bytes into `slot`."""

    slot: Slot
    size: int
    writes: list[Write]

    def __str__(self) -> str:
        return "\n".join(map(str, [f"{self.slot}, now {self.size:#x} bytes", *self.writes]))


def plan_exchange(elf: ElfFile, slot: Slot, section: Bytes, *, new_record: bool = False) -> Exchange:
    """Plan an exchange. `new_record`: add an undo record that restores `elf`. Raises RefusedError if the section does not fit."""
    size = len(section)
    if size > slot.room:
        message = f"{size:,} bytes do not fit into the section's place, which has {slot.room:,}"
        raise RefusedError(Refusal.NO_ROOM_IN_PLACE, message, file=elf.name)
    segments, sections = resize_headers(elf, slot, size)
    writes = [Write(slot.offset, bytes(section).ljust(slot.size, b"\0"))]
    writes += [Write(elf.header.e_phoff + n * PHDR_SIZE, pack_records([segments[n]], elf.byte_order)) for n in slot.segments]
    writes += [Write(elf.header.e_shoff + n * SHDR_SIZE, pack_records([sections[n].header], elf.byte_order)) for n in slot.sections]
    record = [Write(len(elf.data), undo_record.make_record(elf.data, writes))] if new_record else update_record(elf, writes)
    return Exchange(slot, size, writes + record)


def resize_headers(elf: ElfFile, slot: Slot, size: int) -> tuple[list[Phdr], list[Section]]:
    """Return the file's program and section headers with the new size of its SFrame section."""
    segments, sections = elf.segments[:], elf.sections[:]
    for number in slot.segments:
        segments[number] = segments[number]._replace(p_filesz=size, p_memsz=size)
    for number in slot.sections:
        sections[number] = sections[number]._replace(header=sections[number].header._replace(sh_size=size))
    return segments, sections


def update_record(elf: ElfFile, writes: list[Write]) -> list[Write]:
    """Return the write of the file's undo record, if valid, updated so that it still restores the original after these writes."""
    record = undo_record.read_verified(elf.data)
    if record is None:
        return []
    covered = join_extents(Extent(start, end) for start, end in record.covered)
    if any(find_gaps(covered, offset, offset + len(data)) for offset, data in writes):
        message = "the section is a part of the file that sframegen changed, and what it would restore"
        raise RefusedError(Refusal.NO_ROOM_IN_PLACE, message, file=elf.name)
    new = [apply_writes(writes, start, elf.data[start:end]) for start, end in record.covered]
    return [Write(record.start, undo_record.encode_record(record, new))]


def apply_writes(writes: list[Write], start: int, old: memoryview) -> bytearray:
    """Return the bytes `old`, which are at file offset `start`, as they are after these writes."""
    new, end = bytearray(old), start + len(old)
    for offset, data in writes:
        low, high = max(start, offset), min(end, offset + len(data))
        if low < high:
            new[low - start : high - start] = data[low - offset : high - offset]
    return new


def verify_exchange(exchange: Exchange, elf: ElfFile, result: Path, reader: Reader) -> list[str]:
    """Return findings about the changed file at `result`. `reader`: the other reader of its headers."""
    from linker.inject.verify import verify_writes  # noqa: PLC0415 - only where results are read back

    return verify_writes(elf, *resize_headers(elf, exchange.slot, exchange.size), exchange.writes, result, reader)
