"""The layout of programs with fixed addresses: new pages before the first segment hold the headers, and nothing has to move.

The first segment begins earlier, in the file and in memory, with the larger program header table, the interpreter's name and the
notes. Their old bytes stay where they are, as the old headers do: code that reads them (`__ehdr_start`) finds what it did. Every
other byte keeps its address; its offset in the file grows by those pages.

Two sections cover what has none, for patchelf, which makes room before the first section that it takes for immovable (PROGBITS):
the old headers are one. It counts what is before them as to be moved, so that it always adds pages, which are writable. Into the
rest of pages that nothing covers it would put .dynamic, where ld.so cannot write; and where the immovable section does not begin
a page, patchelf 0.17 may put the end of .dynamic into that page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from linker.inject.gaps import Gap, moved_segment
from linker.inject.image import MAX_ADDRESS
from linker.inject.layout import WORD, LayoutDraft, Move, follow_segment, gap_after, insert_loads, load_at, no_room, sframe_at
from linker.inject.movable import MOVABLE_SEGMENTS
from sframegen.elf.ranges import align_up, overlapping
from sframegen.elf.records import (
    EHDR_SIZE,
    ET_EXEC,
    PHDR_SIZE,
    PT_PHDR,
    SHF_ALLOC,
    SHT_NOBITS,
    SHT_PROGBITS,
    SHT_STRTAB,
    Phdr,
    Shdr,
)

if TYPE_CHECKING:
    from linker.inject.image import Image
    from sframegen.elf.ranges import Extent

NEW_SEGMENTS = 2  # PT_LOAD and PT_GNU_SFRAME
MIN_ADDRESS = 0x10000  # kernels map nothing below vm.mmap_min_addr
PAGE = 0x10000  # bytes: the largest page in use


def is_possible(image: Image) -> bool:
    """True for a program with fixed addresses whose first segment begins with its headers."""
    first = image.loads[0]
    return (
        image.elf.header.e_type == ET_EXEC
        and image.load == first
        and first.p_offset == 0
        and image.elf.header.e_phoff == EHDR_SIZE
        and first.p_vaddr % min(image.page, PAGE) == 0
    )


def before(image: Image, section_size: int) -> LayoutDraft:
    """Raises RefusedError where there are no addresses, before the first segment or after the last. The image is a possible one."""
    first = image.loads[0]
    pieces = notes_and_interpreter(image)
    table_size = (len(image.segments) + NEW_SEGMENTS) * PHDR_SIZE
    moves, at = [], EHDR_SIZE + table_size
    for piece in pieces:
        at = align_up(at, piece.align)
        moves.append((piece, at))
        at += piece.size
    pages = align_up(at + 1, PAGE)
    start = first.p_vaddr - pages
    if start < MIN_ADDRESS:
        raise no_room(image, f"its first segment is at {first.p_vaddr:#x}, too near to address 0")

    below = (Gap(0, pages),)
    offset = align_up(image.room + pages, 8)
    address = align_up(image.end_address, image.page) + offset % image.page
    if address + section_size > MAX_ADDRESS:
        raise no_room(image, f"the last segment ends at {image.end_address:#x}: no addresses are left after it")
    sframe, section = sframe_at(offset, address, section_size)
    placed = [Move(piece.names, piece.size, piece.start, to, piece.start + first.p_vaddr, start + to) for piece, to in moves]
    segments = [header_of(segment, first, below, placed, table_size) for segment in image.segments]
    load = load_at(image, offset, address, section_size)
    segments = [*insert_loads(segments, [load]), sframe]
    dropped = [segment for segment in image.elf.segments if segment not in image.segments]
    gaps, end = gap_after(image, offset + section_size, below)
    room = Shdr(0, SHT_STRTAB, SHF_ALLOC, start + at, at, pages - at, 0, 0, 1, 0)
    headers = Shdr(0, SHT_PROGBITS, SHF_ALLOC, first.p_vaddr, pages, first_kept(image, pieces), 0, 0, 8, 0)
    covers = [(".sframegen.room", room), (".sframegen.headers", headers)]
    return LayoutDraft("before", gaps, EHDR_SIZE, segments, [load, sframe], section, end, placed, dropped, covers)


def notes_and_interpreter(image: Image) -> list[Extent]:
    """Return the pieces of the segments that may move: cores and patchelf look for them in the first page."""
    ranges = [(s.p_offset, s.p_offset + s.p_filesz) for s in image.segments if s.p_type in MOVABLE_SEGMENTS]
    return sorted({piece for start, end in ranges for piece in overlapping(image.pieces, start, end)})


def header_of(segment: Phdr, first: Phdr, below: tuple[Gap], moves: list[Move], table_size: int) -> Phdr:
    """Return the header of a segment of the original in the new table."""
    [(_, pages)] = below
    start = first.p_vaddr - pages
    if segment.p_type == PT_PHDR:
        place = start + EHDR_SIZE
        return segment._replace(p_offset=EHDR_SIZE, p_vaddr=place, p_paddr=place, p_filesz=table_size, p_memsz=table_size)
    if segment == first:
        return first._replace(
            p_vaddr=start,
            p_paddr=(first.p_paddr - pages) % WORD,
            p_filesz=first.p_filesz + pages,
            p_memsz=first.p_memsz + pages,
            p_align=min(first.p_align, PAGE),
        )
    followed = follow_segment(segment, moves)
    return moved_segment(below, segment) if followed == segment else followed


def first_kept(image: Image, pieces: list[Extent]) -> int:
    """Return the offset in the original of the first section, after the headers, that does not move."""
    starts = [
        s.header.sh_offset
        for s in image.elf.sections
        if s.header.sh_flags & SHF_ALLOC and s.header.sh_type != SHT_NOBITS and s.header.sh_offset >= image.table.end
    ]
    kept = [start for start in starts if not overlapping(pieces, start, start + 1)]
    return min([image.loads[0].p_filesz, *kept])
