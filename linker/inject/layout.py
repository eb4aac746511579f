"""A layout's decisions, from which the rest of the plan follows; the layouts at the end of the file, loaded (tail) or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from linker.inject.gaps import Gap, moved_end, total_size
from linker.inject.image import MAX_ADDRESS, check_end, check_header, check_sections
from linker.inject.movable import MOVABLE_SEGMENTS
from sframegen.base.errors import Refusal, RefusedError
from sframegen.elf.ranges import align_up
from sframegen.elf.records import PF, PHDR_SIZE, PT, SHF, SHT, Phdr, Shdr

if TYPE_CHECKING:
    from linker.inject.gaps import Gaps
    from linker.inject.image import Image
    from sframegen.elf.file import ElfFile


NEW_SEGMENTS = 3  # two PT_LOADs and PT_GNU_SFRAME
MAX_HOLE = 64 << 20  # bytes of file between what was loaded and the new segments; .bss of that size


def tail(image: Image, section_size: int) -> LayoutDraft:
    room = image.room
    bias = image.loads[0].p_vaddr - image.loads[0].p_offset
    address = max(align_up(image.end_address, image.page), align_up(room + bias, image.page))
    table_address = align_up(address + section_size, image.page)
    size = (len(image.segments) + NEW_SEGMENTS) * PHDR_SIZE
    if bias < 0 or bias % image.page or table_address + size > MAX_ADDRESS or address - bias - room > MAX_HOLE:
        raise no_room(image, "neither after it nor at the end of the file")
    sframe, section = sframe_at(address - bias, address, section_size)
    table_offset = table_address - bias
    segments = [
        segment._replace(p_offset=table_offset, p_vaddr=table_address, p_paddr=table_address, p_filesz=size, p_memsz=size)
        if segment.p_type == PT.PHDR
        else segment
        for segment in image.segments
    ]
    loads = [load_at(image, section.sh_offset, address, section_size), load_at(image, table_offset, table_address, size)]
    # Without a section over the table, eu-strip takes it for a gap and clears it.
    cover = Shdr(0, SHT.PROGBITS, SHF.ALLOC, table_address, table_offset, size, 0, 0, 8, 0)
    segments = [*insert_loads(segments, loads), sframe]
    dropped = [segment for segment in image.elf.segments if segment not in image.segments]
    gaps, end = gap_after(image, table_offset + size)
    return LayoutDraft(
        "tail", gaps, table_offset, segments, [*loads, sframe], section, end, [], dropped, [(".sframegen.phdrs", cover)]
    )


WORD = 1 << 64
BUILD_ID_LEAVES = "the build-id note would leave the first page of the file"
Layout = Literal["front", "before", "tail", "unloaded"]


class Move(NamedTuple):
    """A piece of metadata that moves: offset in the original and in the new file, link-time addresses, size in bytes."""

    names: tuple[str, ...]
    size: int
    from_offset: int
    to_offset: int
    from_address: int
    to_address: int

    def contains(self, offset: int, size: int) -> bool:
        """True if a range of the original file moves with it."""
        return size > 0 and self.from_offset <= offset and offset + size <= self.from_offset + self.size


class LayoutDraft(NamedTuple):
    """Offsets in the new file."""

    layout: Layout
    gaps: Gaps
    table_offset: int
    segments: list[Phdr]  # the whole new table
    new_segments: list[Phdr]  # of them
    section: Shdr  # `.sframe`, without its name
    end: int  # after the last byte of the original, the section and what is loaded
    moves: list[Move]
    dropped: list[Phdr]  # headers of the original that gave up their slot
    covers: list[tuple[str, Shdr]]  # further sections, over bytes that strip tools would clear without one
    spare_size: int = 0  # bytes after the table that are cleared

    @property
    def moved_size(self) -> int:
        return sum(item.size for item in self.moves)


class NoRoomError(RefusedError):
    """The new program headers do not fit; `why` says why."""

    why: str


def no_room(image: Image, why: str, reason: Refusal = Refusal.NO_ROOM) -> NoRoomError:
    error = NoRoomError(reason, f"no room for two more program headers: {why}", "program header table", file=image.elf.name)
    error.why = why
    return error


def gap_after(image: Image, end: int, gaps: Gaps = ()) -> tuple[Gaps, int]:
    """Return (gaps, end of the file) for new bytes between what is loaded and what is not; they end at `end`.

    `gaps`: those before. What is not loaded keeps its alignment.
    """
    size, at = len(image.elf.data), image.room
    if at < size:
        start = moved_end(gaps, at)
        gaps = (*gaps, Gap(at, align_up(end - start, image.align_after)))
    return gaps, max(end, size + total_size(gaps))


def readable_segment(kind: int, offset: int, address: int, size: int, align: int) -> Phdr:
    return Phdr(kind, PF.R, offset, address, address, size, size, align)


def load_at(image: Image, offset: int, address: int, size: int) -> Phdr:
    return readable_segment(PT.LOAD, offset, address, size, image.page)


def sframe_at(offset: int, address: int, size: int) -> tuple[Phdr, Shdr]:
    """Return the headers of a loaded section."""
    return readable_segment(PT.GNU_SFRAME, offset, address, size, 8), Shdr(
        0, SHT.GNU_SFRAME, SHF.ALLOC, address, offset, size, 0, 0, 8, 0
    )


def insert_loads(segments: list[Phdr], loads: list[Phdr]) -> list[Phdr]:
    """Insert them after the last PT_LOAD: they are read in ascending order."""
    last = max(index for index, segment in enumerate(segments) if segment.p_type == PT.LOAD)
    return [*segments[: last + 1], *loads, *segments[last + 1 :]]


def follow_segment(segment: Phdr, moves: list[Move]) -> Phdr:
    """Return the header of moved metadata with its new place."""
    for item in moves:
        if segment.p_type in MOVABLE_SEGMENTS and item.contains(segment.p_offset, segment.p_filesz):
            by = item.to_address - item.from_address
            return segment._replace(
                p_offset=segment.p_offset + item.to_offset - item.from_offset,
                p_vaddr=(segment.p_vaddr + by) % WORD,
                p_paddr=(segment.p_paddr + by) % WORD,
            )
    return segment


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
    section = Shdr(0, SHT.GNU_SFRAME, flags, ADDRESS, offset, section_size, 0, 0, ALIGN, 0)
    return LayoutDraft("unloaded", (), elf.header.e_phoff, elf.segments, [], section, offset + section_size, [], [], [])
