"""Drafts of layouts, from which the rest of a plan follows. The two at the file's end are drafted here: loaded (tail) or not."""

from __future__ import annotations

from linker.inject.gaps import Gap, Gaps, moved_end, total_size
from linker.inject.image import MAX_ADDRESS, Image, check_end, check_header, check_sections
from linker.inject.movable import MOVABLE_SEGMENTS
from sframegen.base.errors import Refusal, RefusedError
from sframegen.base.quick_typing import TYPE_CHECKING, Literal, NamedTuple
from sframegen.elf.ranges import align_up
from sframegen.elf.records import PF, PHDR_SIZE, PT, SHF, SHT, Phdr, Shdr

if TYPE_CHECKING:
    from sframegen.elf.file import ElfFile


NEW_SEGMENTS = 3  # two PT_LOADs and PT_GNU_SFRAME
MAX_HOLE = 64 << 20  # bytes in the file between the old and new segments, which .bss causes
WORD = 1 << 64
BUILD_ID_LEAVES = "the build-id note would leave the first page of the file"
ADDRESS, ALIGN = 0, 8  # of a section that is not loaded
Layout = Literal["front", "before", "tail", "unloaded"]


class Move(NamedTuple):
    """A move of a metadata piece: offset in the original and in the new file, link-time addresses, size in bytes."""

    names: tuple[str, ...]
    size: int
    from_offset: int
    to_offset: int
    from_address: int
    to_address: int

    def contains(self, offset: int, size: int) -> bool:
        """Return True if the piece contains this range of the original file."""
        return size > 0 and self.from_offset <= offset and offset + size <= self.from_offset + self.size


class LayoutDraft(NamedTuple):
    """A draft of a layout: where the new headers and section go. Offsets are those in the new file."""

    layout: Layout
    gaps: Gaps
    table_offset: int
    segments: list[Phdr]  # the whole new program header table
    new_segments: list[Phdr]  # the added ones among `segments`
    section: Shdr  # `.sframe`, without its name
    end: int  # the offset after the last byte of the original, the section and all segments
    moves: list[Move]
    dropped: list[Phdr]  # program headers of the original that are not in the new table
    covers: list[tuple[str, Shdr]]  # extra sections over bytes that strip tools would otherwise clear
    spare_size: int = 0  # bytes to clear after the program header table

    @property
    def moved_size(self) -> int:
        return sum(item.size for item in self.moves)


class NoRoomError(RefusedError):
    """A refusal because the new program headers do not fit; `why` is the reason in words."""

    why: str


def no_room(image: Image, why: str, reason: Refusal = Refusal.NO_ROOM) -> NoRoomError:
    error = NoRoomError(reason, f"no room for two more program headers: {why}", "program header table", file=image.elf.name)
    error.why = why
    return error


def gap_after(image: Image, end: int, gaps: Gaps = ()) -> tuple[Gaps, int]:
    """Return (gaps, end of the file) with a gap for new bytes, up to `end`, between loaded and unloaded parts of the file.

    `gaps`: the earlier gaps. Unloaded parts keep their alignment.
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
    """Return the program and section header of a loaded SFrame section."""
    return readable_segment(PT.GNU_SFRAME, offset, address, size, 8), Shdr(
        0, SHT.GNU_SFRAME, SHF.ALLOC, address, offset, size, 0, 0, 8, 0
    )


def insert_loads(segments: list[Phdr], loads: list[Phdr]) -> list[Phdr]:
    """Return the segments with `loads` after the last PT_LOAD: loaders expect PT_LOADs in ascending order."""
    last = max(index for index, segment in enumerate(segments) if segment.p_type == PT.LOAD)
    return [*segments[: last + 1], *loads, *segments[last + 1 :]]


def follow_segment(segment: Phdr, moves: list[Move]) -> Phdr:
    """Return the program header, with its new place if its metadata moves."""
    for item in moves:
        if segment.p_type in MOVABLE_SEGMENTS and item.contains(segment.p_offset, segment.p_filesz):
            by = item.to_address - item.from_address
            return segment._replace(
                p_offset=segment.p_offset + item.to_offset - item.from_offset,
                p_vaddr=(segment.p_vaddr + by) % WORD,
                p_paddr=(segment.p_paddr + by) % WORD,
            )
    return segment


def tail(image: Image, section_size: int) -> LayoutDraft:
    """Draft a layout with a section and a program header table that are loaded from the file's end. Raises NoRoomError."""
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
    # A section covers the table: otherwise eu-strip takes it for a gap and clears it.
    cover = Shdr(0, SHT.PROGBITS, SHF.ALLOC, table_address, table_offset, size, 0, 0, 8, 0)
    segments = [*insert_loads(segments, loads), sframe]
    dropped = [segment for segment in image.elf.segments if segment not in image.segments]
    gaps, end = gap_after(image, table_offset + size)
    return LayoutDraft(
        "tail", gaps, table_offset, segments, [*loads, sframe], section, end, [], dropped, [(".sframegen.phdrs", cover)]
    )


def unloaded(elf: ElfFile, section_size: int) -> LayoutDraft:
    """Draft a layout with an unloaded section at the file's end. Raises FormatError or RefusedError if none can be added."""
    check_header(elf, new_headers=0)
    check_sections(elf)
    check_end(elf)
    if not elf.sections:
        message = "no section headers: without them, nobody finds a section that is not loaded"
        raise RefusedError(Refusal.NO_ROOM, message, file=elf.name)
    offset = align_up(len(elf.data), ALIGN)
    section = Shdr(0, SHT.GNU_SFRAME, 0, ADDRESS, offset, section_size, 0, 0, ALIGN, 0)
    return LayoutDraft("unloaded", (), elf.header.e_phoff, elf.segments, [], section, offset + section_size, [], [], [])
