"""Drafts the layout of programs with fixed addresses: new pages before the first segment hold the larger program header table.

The first segment then begins earlier in the file and in memory, with copies of the headers, the interpreter's name and the notes.
The old bytes stay in place for code that reads them (`__ehdr_start`). Every other byte keeps its address, and its file offset
grows by the size of the new pages.

Two extra sections cover the unused new bytes and the old headers, for patchelf: it moves everything that precedes the first
section it takes for immovable (PROGBITS). The section over the old headers makes it always add writable pages; otherwise it would
put .dynamic into uncovered bytes of read-only pages, where ld.so cannot write. The section starts on a page boundary because
patchelf 0.17 may put the end of .dynamic into the page in which the immovable section begins.
"""

from __future__ import annotations

from linker.inject.gaps import Gap, shift_segment
from linker.inject.image import MAX_ADDRESS, Image
from linker.inject.layout import (
    BUILD_ID_WOULD_LEAVE,
    LayoutDraft,
    Move,
    add_gap_for_new_bytes,
    insert_loads,
    loaded_section,
    new_load,
    no_room_error,
    read_only_segment,
    sframe_headers,
    update_moved_segment,
)
from linker.inject.movable import FIRST_PAGE, MOVABLE_SEGMENTS, may_move, named_section_extent
from sframegen.elf.ranges import Extent, align_up, find_overlapping, is_within
from sframegen.elf.records import ADDRESS_SPACE, EHDR_SIZE, ET, PHDR_SIZE, PT, SHF, SHT, Phdr, Shdr

NEW_SEGMENTS = 2  # PT_LOAD and PT_GNU_SFRAME
MIN_ADDRESS = 0x10000  # the usual vm.mmap_min_addr: kernels do not map lower addresses
MAX_PAGE = 0x10000  # bytes: the largest page in use


def can_insert_pages(image: Image) -> bool:
    """Return True for a program with fixed addresses whose first segment begins with its headers."""
    first_load = image.loads[0]
    return (
        image.elf.header.e_type == ET.EXEC
        and image.table_load == first_load
        and first_load.p_offset == 0
        and image.elf.header.e_phoff == EHDR_SIZE
        and first_load.p_vaddr % min(image.page, MAX_PAGE) == 0
    )


def draft_before_layout(image: Image, section_size: int) -> LayoutDraft:
    """Draft the layout for an image that `can_insert_pages` accepts. Raises RefusedError if there are no addresses left for it."""
    first_load = image.loads[0]
    pieces = movable_notes_and_interpreter(image)
    separate_notes = find_separate_build_id(image, pieces)
    table_size = (len(image.segments) + NEW_SEGMENTS + len(separate_notes)) * PHDR_SIZE
    copies, used_end = [], EHDR_SIZE + table_size
    for piece in [*separate_notes, *pieces]:
        copy_offset = align_up(used_end, piece.align)
        copies.append((piece, copy_offset))
        used_end = copy_offset + piece.size
        if image.has_build_id(piece) and used_end > FIRST_PAGE:
            raise no_room_error(image, BUILD_ID_WOULD_LEAVE)
    inserted_size = align_up(used_end + 1, MAX_PAGE)  # + 1: the section over the unused bytes must not be empty
    old_start, new_start = first_load.p_vaddr, first_load.p_vaddr - inserted_size
    if new_start < MIN_ADDRESS:
        raise no_room_error(image, f"its first segment is at {old_start:#x}, too near to address 0")

    gaps_before = (Gap(0, inserted_size),)
    offset = align_up(image.insertion_offset + inserted_size, 8)
    address = align_up(image.end_address, image.page) + offset % image.page
    if address + section_size > MAX_ADDRESS:
        raise no_room_error(image, f"the last segment ends at {image.end_address:#x}: no addresses are left after it")
    sframe, section = sframe_headers(offset, address, section_size)
    moves = [Move(piece.names, piece.size, piece.start, to, piece.start + old_start, new_start + to) for piece, to in copies]
    segments = [update_program_header(segment, first_load, gaps_before, moves, table_size) for segment in image.segments]
    load = new_load(image, offset, address, section_size)
    notes = [read_only_segment(PT.NOTE, to, new_start + to, piece.size, piece.align) for piece, to in copies[: len(separate_notes)]]
    segments = [*insert_loads(segments, [load]), sframe, *notes]
    dropped = [segment for segment in image.elf.segments if segment not in image.segments]
    gaps, end = add_gap_for_new_bytes(image, offset + section_size, gaps_before)
    unused = loaded_section(SHT.STRTAB, new_start + used_end, offset=used_end, size=inserted_size - used_end, align=1)
    old_size = first_unmoved_offset(image, pieces)
    headers = loaded_section(SHT.PROGBITS, old_start, offset=inserted_size, size=old_size, align=8)
    covers = [(".sframegen.room", unused), (".sframegen.headers", headers)]
    covers += [(".sframegen.note", note_cover(first_load, piece, inserted_size)) for piece in separate_notes]
    return LayoutDraft("before", gaps, EHDR_SIZE, segments, [load, sframe, *notes], section, end, moves, dropped, covers)


def movable_notes_and_interpreter(image: Image) -> list[Extent]:
    """Return the movable notes and the interpreter's name, which core dumps and patchelf expect in the first page."""
    extents = [segment.extent for segment in image.segments if segment.p_type in MOVABLE_SEGMENTS]
    return sorted({piece for extent in extents for piece in find_overlapping(image.movable, extent.start, extent.end)})


def find_separate_build_id(image: Image, pieces: list[Extent]) -> list[Extent]:
    """Return the build-id's section, to be copied to a PT_NOTE of its own, if the notes around it cannot move; else nothing.

    Raises RefusedError if the build-id shares its section with other notes.
    """
    note = image.build_id
    if note is None or any(map(image.has_build_id, pieces)):
        return []
    if not image.elf.sections:
        return [note]
    for section in image.elf.sections:
        extent = named_section_extent(section)
        if section.header.sh_type == SHT.NOTE and is_within(note[:2], [extent[:2]]) and may_move(image.elf, section, {}):
            return [extent]
    raise no_room_error(image, BUILD_ID_WOULD_LEAVE)


def note_cover(first_load: Phdr, piece: Extent, inserted_size: int) -> Shdr:
    """Return a section header for a note's old bytes, which stay in an unmoved PT_NOTE after the note was copied."""
    address, offset = first_load.p_vaddr + piece.start, inserted_size + piece.start
    return loaded_section(SHT.NOTE, address, offset=offset, size=piece.size, align=piece.align)


def update_program_header(segment: Phdr, first_load: Phdr, gaps_before: tuple[Gap], moves: list[Move], table_size: int) -> Phdr:
    """Return an original segment's program header with its new offset, address and size."""
    [(_, inserted_size)] = gaps_before
    start = first_load.p_vaddr - inserted_size
    if segment.p_type == PT.PHDR:
        address = start + EHDR_SIZE
        return segment._replace(p_offset=EHDR_SIZE, p_vaddr=address, p_paddr=address, p_filesz=table_size, p_memsz=table_size)
    if segment == first_load:
        return first_load._replace(
            p_vaddr=start, p_paddr=(first_load.p_paddr - inserted_size) % ADDRESS_SPACE,
            p_filesz=first_load.p_filesz + inserted_size, p_memsz=first_load.p_memsz + inserted_size,
            p_align=min(first_load.p_align, MAX_PAGE),
        )  # fmt: skip
    updated = update_moved_segment(segment, moves)
    return shift_segment(gaps_before, segment) if updated == segment else updated


def first_unmoved_offset(image: Image, pieces: list[Extent]) -> int:
    """Return the offset in the original of the first unmoved section after the headers."""
    starts = [
        s.header.sh_offset
        for s in image.elf.sections
        if s.header.sh_flags & SHF.ALLOC and s.header.sh_type != SHT.NOBITS and s.header.sh_offset >= image.table.end
    ]
    unmoved = [start for start in starts if not find_overlapping(pieces, start, start + 1)]
    return min([image.loads[0].p_filesz, *unmoved])
