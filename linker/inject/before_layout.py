"""The layout of programs with fixed addresses: new pages before the first segment hold the headers, and nothing has to move.

The first segment begins earlier, in the file and in memory, with the larger program header table, the interpreter's name and the
notes. Their old bytes and the old headers stay in place, for code that reads them (`__ehdr_start`). Every other byte keeps its
address; its offset in the file grows by the new pages.

Two sections cover bytes without one, because patchelf makes room before the first section that it takes for immovable (PROGBITS).
The old headers are such a section: patchelf then counts everything before them as to be moved, and always adds writable pages. It
would put .dynamic into the uncovered rest of other pages, where ld.so cannot write. If the immovable section does not begin a
page, patchelf 0.17 may put the end of .dynamic into that page.
"""

from __future__ import annotations

from linker.inject.gaps import Gap, moved_segment
from linker.inject.image import MAX_ADDRESS, Image
from linker.inject.layout import (
    BUILD_ID_LEAVES,
    WORD,
    LayoutDraft,
    Move,
    follow_segment,
    gap_after,
    insert_loads,
    load_at,
    no_room,
    readable_segment,
    sframe_at,
)
from linker.inject.movable import FIRST_PAGE, MOVABLE_SEGMENTS, may_move, section_range
from sframegen.elf.ranges import Extent, align_up, find_overlapping, is_within
from sframegen.elf.records import EHDR_SIZE, ET, PHDR_SIZE, PT, SHF, SHT, Phdr, Shdr

NEW_SEGMENTS = 2  # PT_LOAD and PT_GNU_SFRAME
MIN_ADDRESS = 0x10000  # the usual vm.mmap_min_addr: kernels do not map lower addresses
PAGE = 0x10000  # bytes: the largest page in use


def is_possible(image: Image) -> bool:
    """Return True for a program with fixed addresses whose first segment begins with its headers."""
    first = image.loads[0]
    return (
        image.elf.header.e_type == ET.EXEC
        and image.load == first
        and first.p_offset == 0
        and image.elf.header.e_phoff == EHDR_SIZE
        and first.p_vaddr % min(image.page, PAGE) == 0
    )


def before(image: Image, section_size: int) -> LayoutDraft:
    """Draft the layout for an image that `is_possible`. Raises RefusedError if addresses before or after the segments run out."""
    first = image.loads[0]
    pieces = notes_and_interpreter(image)
    apart = build_id_apart(image, pieces)
    table_size = (len(image.segments) + NEW_SEGMENTS + len(apart)) * PHDR_SIZE
    moves, at = [], EHDR_SIZE + table_size
    for piece in [*apart, *pieces]:
        at = align_up(at, piece.align)
        moves.append((piece, at))
        at += piece.size
        if image.has_build_id(piece) and at > FIRST_PAGE:
            raise no_room(image, BUILD_ID_LEAVES)
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
    notes = [readable_segment(PT.NOTE, to, start + to, piece.size, piece.align) for piece, to in moves[: len(apart)]]
    new = [load, sframe, *notes]
    segments = [*insert_loads(segments, [load]), sframe, *notes]
    dropped = [segment for segment in image.elf.segments if segment not in image.segments]
    gaps, end = gap_after(image, offset + section_size, below)
    room = Shdr(0, SHT.STRTAB, SHF.ALLOC, start + at, at, pages - at, 0, 0, 1, 0)
    headers = Shdr(0, SHT.PROGBITS, SHF.ALLOC, first.p_vaddr, pages, first_kept(image, pieces), 0, 0, 8, 0)
    covers = [(".sframegen.room", room), (".sframegen.headers", headers)]
    covers += [(".sframegen.note", note_over(first, piece, pages)) for piece in apart]
    return LayoutDraft("before", gaps, EHDR_SIZE, segments, new, section, end, placed, dropped, covers)


def notes_and_interpreter(image: Image) -> list[Extent]:
    """Return the pieces of movable segments, which core dumps and patchelf expect in the first page."""
    extents = [segment.extent for segment in image.segments if segment.p_type in MOVABLE_SEGMENTS]
    return sorted({piece for extent in extents for piece in find_overlapping(image.pieces, extent.start, extent.end)})


def build_id_apart(image: Image, pieces: list[Extent]) -> list[Extent]:
    """Return the build-id's section if the notes around it cannot move: it is copied to a PT_NOTE of its own in the first page.

    Raises RefusedError if the build-id is not a section by itself.
    """
    note = image.build_id
    if note is None or any(map(image.has_build_id, pieces)):
        return []
    if not image.elf.sections:
        return [note]
    for section in image.elf.sections:
        found = section_range(section)
        if section.header.sh_type == SHT.NOTE and is_within(note[:2], [found[:2]]) and may_move(image.elf, section, {}):
            return [found]
    raise no_room(image, BUILD_ID_LEAVES)


def note_over(first: Phdr, piece: Extent, pages: int) -> Shdr:
    """Return a section header for the old bytes of a note that moved out of an unmoved PT_NOTE."""
    return Shdr(0, SHT.NOTE, SHF.ALLOC, first.p_vaddr + piece.start, pages + piece.start, piece.size, 0, 0, piece.align, 0)


def header_of(segment: Phdr, first: Phdr, below: tuple[Gap], moves: list[Move], table_size: int) -> Phdr:
    """Return an original segment's program header for the new table."""
    [(_, pages)] = below
    start = first.p_vaddr - pages
    if segment.p_type == PT.PHDR:
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
    """Return the offset in the original of the first unmoved section after the headers."""
    starts = [
        s.header.sh_offset
        for s in image.elf.sections
        if s.header.sh_flags & SHF.ALLOC and s.header.sh_type != SHT.NOBITS and s.header.sh_offset >= image.table.end
    ]
    kept = [start for start in starts if not find_overlapping(pieces, start, start + 1)]
    return min([image.loads[0].p_filesz, *kept])
