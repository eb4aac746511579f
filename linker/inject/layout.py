"""Defines layout drafts, from which the rest of a plan follows, and drafts the tail layout and the unloaded layout.

A layout says where the section and the program header table go. The section always follows the bytes of all segments.
- front: a new segment loads the section. The table grows in place, over metadata that moves to the new segment: front_layout.py.
- before: the table is on new pages before the first segment of a program with fixed addresses: before_layout.py.
- tail: the table moves behind the section, and each of them gets a new segment.
- unloaded: no segment loads the section, so the table does not change.
"""

from __future__ import annotations

from linker.inject.gaps import Gap, Gaps, to_new_end, total_size
from linker.inject.image import MAX_ADDRESS, Image, check_header, check_no_appended_data, check_sections
from linker.inject.movable import MOVABLE_SEGMENTS
from sframegen.base.errors import Refusal, RefusedError
from sframegen.base.quick_typing import TYPE_CHECKING, Literal, NamedTuple
from sframegen.elf.ranges import align_up
from sframegen.elf.records import ADDRESS_SPACE, PF, PHDR_SIZE, PT, SHF, SHT, UNUSED_SECTION, Phdr, Shdr

if TYPE_CHECKING:
    from sframegen.elf.file import ElfFile

NEW_SEGMENTS = 3  # two PT_LOADs and PT_GNU_SFRAME
MAX_HOLE = 64 << 20  # bytes: .bss leaves a hole of its size in the file between the old and new segments
BUILD_ID_WOULD_LEAVE = "the build-id note would leave the first page of the file"
UNLOADED_ADDRESS, UNLOADED_ALIGN = 0, 8  # of a section that is not loaded
Layout = Literal["front", "before", "tail", "unloaded"]


class Move(NamedTuple):
    """A range of metadata that moves, with its offset and link-time address in the original and in the new file."""

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
    end: int  # the file offset after the original, the section and all segments
    moves: list[Move]
    dropped: list[Phdr]  # program headers of the original that are not in the new table
    covers: list[tuple[str, Shdr]]  # (name, header) of extra sections over bytes that strip tools would otherwise clear
    spare_size: int = 0  # bytes to clear after the program header table

    @property
    def moved_size(self) -> int:
        return sum(item.size for item in self.moves)


class NoRoomError(RefusedError):
    """A refusal because the new program headers do not fit; `why` is the reason in words."""

    why: str


def no_room_error(image: Image, why: str, reason: Refusal = Refusal.NO_ROOM) -> NoRoomError:
    """Return the error to raise. Its `why` lets a caller report the same reason as another Refusal."""
    error = NoRoomError(reason, f"no room for two more program headers: {why}", "program header table", file=image.elf.name)
    error.why = why
    return error


def add_gap_for_new_bytes(image: Image, end: int, gaps: Gaps = ()) -> tuple[Gaps, int]:
    """Return (gaps, end of the file) after adding a gap that reaches up to `end` between the file's loaded and unloaded parts.

    `gaps`: the gaps before it. Its size keeps the alignment of the unloaded parts.
    """
    size, at = len(image.elf.data), image.insertion_offset
    if at < size:
        start = to_new_end(gaps, at)
        gaps = (*gaps, Gap(at, align_up(end - start, image.align_after)))
    return gaps, max(end, size + total_size(gaps))


def read_only_segment(kind: int, offset: int, address: int, size: int, align: int) -> Phdr:
    return Phdr(kind, PF.R, offset, address, address, size, size, align)


def new_load(image: Image, offset: int, address: int, size: int) -> Phdr:
    return read_only_segment(PT.LOAD, offset, address, size, image.page)


def sframe_headers(offset: int, address: int, size: int) -> tuple[Phdr, Shdr]:
    """Return the program and section header of a loaded SFrame section."""
    return read_only_segment(PT.GNU_SFRAME, offset, address, size, 8), loaded_section(SHT.GNU_SFRAME, address, offset, size, 8)


def loaded_section(kind: int, address: int, offset: int, size: int, align: int) -> Shdr:
    """Return the header of a section that a segment loads. Its name is added with the section header table."""
    return UNUSED_SECTION._replace(
        sh_type=kind, sh_flags=SHF.ALLOC, sh_addr=address, sh_offset=offset, sh_size=size, sh_addralign=align
    )


def insert_loads(segments: list[Phdr], loads: list[Phdr]) -> list[Phdr]:
    """Return the segments with `loads` after the last PT_LOAD: loaders expect PT_LOADs in ascending order."""
    last = max(index for index, segment in enumerate(segments) if segment.p_type == PT.LOAD)
    return [*segments[: last + 1], *loads, *segments[last + 1 :]]


def update_moved_segment(segment: Phdr, moves: list[Move]) -> Phdr:
    """Return the program header, with its new offset and addresses if its metadata moves."""
    for item in moves:
        if segment.p_type in MOVABLE_SEGMENTS and item.contains(segment.p_offset, segment.p_filesz):
            shift = item.to_address - item.from_address
            return segment._replace(
                p_offset=segment.p_offset + item.to_offset - item.from_offset,
                p_vaddr=(segment.p_vaddr + shift) % ADDRESS_SPACE,
                p_paddr=(segment.p_paddr + shift) % ADDRESS_SPACE,
            )
    return segment


def draft_tail_layout(image: Image, section_size: int) -> LayoutDraft:
    """Draft a layout with a loaded section and a loaded program header table at the end of the file. Raises NoRoomError."""
    bias = image.loads[0].p_vaddr - image.loads[0].p_offset  # address minus offset, also of the new segments
    address = max(align_up(image.end_address, image.page), align_up(image.insertion_offset + bias, image.page))
    hole_size = address - bias - image.insertion_offset
    table_address = align_up(address + section_size, image.page)
    size = (len(image.segments) + NEW_SEGMENTS) * PHDR_SIZE
    if bias < 0 or bias % image.page or table_address + size > MAX_ADDRESS or hole_size > MAX_HOLE:
        raise no_room_error(image, "neither after it nor at the end of the file")
    sframe, section = sframe_headers(address - bias, address, section_size)
    table_offset = table_address - bias
    segments = [
        segment._replace(p_offset=table_offset, p_vaddr=table_address, p_paddr=table_address, p_filesz=size, p_memsz=size)
        if segment.p_type == PT.PHDR
        else segment
        for segment in image.segments
    ]
    loads = [new_load(image, section.sh_offset, address, section_size), new_load(image, table_offset, table_address, size)]
    # A section covers the table because eu-strip would otherwise take it for a gap and clear it.
    cover = loaded_section(SHT.PROGBITS, table_address, table_offset, size, align=8)
    segments = [*insert_loads(segments, loads), sframe]
    dropped = [segment for segment in image.elf.segments if segment not in image.segments]
    gaps, end = add_gap_for_new_bytes(image, table_offset + size)
    return LayoutDraft(
        "tail", gaps, table_offset, segments, [*loads, sframe], section, end, [], dropped, [(".sframegen.phdrs", cover)]
    )


def draft_unloaded_layout(elf: ElfFile, section_size: int) -> LayoutDraft:
    """Draft a layout with an unloaded section at the end of the file. Raises FormatError or RefusedError if none can be added."""
    check_header(elf, new_headers=0)
    check_sections(elf)
    check_no_appended_data(elf)
    if not elf.sections:
        message = "no section headers: without them, nobody finds a section that is not loaded"
        raise RefusedError(Refusal.NO_ROOM, message, file=elf.name)
    offset = align_up(len(elf.data), UNLOADED_ALIGN)
    section = loaded_section(SHT.GNU_SFRAME, UNLOADED_ADDRESS, offset, section_size, UNLOADED_ALIGN)._replace(sh_flags=0)
    return LayoutDraft("unloaded", (), elf.header.e_phoff, elf.segments, [], section, offset + section_size, [], [], [])
