"""Drafts the front layout: the program header table grows in place, over metadata that moves to the new segment.

Metadata are notes, symbol tables and the like, to which code cannot refer (movable.py). In the new segment, they follow `.sframe`.
Only the build-id stays in the first page of the file, where it replaces other metadata or the padding after the first segment.
"""

from __future__ import annotations

from linker.inject.image import MAX_ADDRESS, Image
from linker.inject.layout import (
    BUILD_ID_WOULD_LEAVE,
    LayoutDraft,
    Move,
    add_gap_for_new_bytes,
    insert_loads,
    new_load,
    no_room_error,
    sframe_headers,
    update_moved_segment,
)
from linker.inject.movable import FIRST_PAGE
from sframegen.base.errors import Refusal, RefusedError
from sframegen.elf.ranges import Extent, align_up, find_overlapping
from sframegen.elf.records import PHDR_SIZE, PT, Phdr

NEW_SEGMENTS = 2  # PT_LOAD and PT_GNU_SFRAME
PADDING_AFTER_METADATA = 8  # bytes, because LIEF 1.0 does not read a .gnu.hash that ends with its segment


def draft_front_layout(image: Image, section_size: int, spare: int) -> LayoutDraft:
    """Draft the layout, with room for `spare` more headers in the table. Raises RefusedError if bytes after it cannot move."""
    kept = image.segments
    end = table_end(image, kept)  # if bytes before it are in use, unused headers are dropped, so that fewer have to move
    if find_overlapping(image.movable, image.table.end, end) or find_overlapping(image.fixed, image.table.end, end):
        kept = [segment for segment in kept if not is_unused(segment, kept)]
        end = table_end(image, kept)
    reserved_end = end + spare * PHDR_SIZE
    moving, staying = choose_pieces_to_move(image, reserved_end)  # `staying`: the build-id and its new offset in the first page
    used_end = max([end, *(to + piece.size for piece, to in staying)])

    offset = align_up(image.insertion_offset, 8)
    address = align_up(image.end_address, image.page) + offset % image.page
    moves = [make_move(image, piece, to, to - piece.start + address_at(image, piece.start)) for piece, to in staying]
    size = section_size  # of the new segment
    for piece in moving:
        size = align_up(offset + size, piece.align) - offset
        moves.append(make_move(image, piece, offset + size, address + size))
        size += piece.size
    size += PADDING_AFTER_METADATA if moving else 0
    if address + size > MAX_ADDRESS:
        message = f"the last segment ends at {image.end_address:#x}: no addresses are left after it"
        raise RefusedError(Refusal.NO_ROOM, message, "program header table", file=image.elf.name)

    sframe, section = sframe_headers(offset, address, section_size)
    segments = [update_moved_segment(grow_program_header(image, segment, kept, used_end), moves) for segment in kept]
    load = new_load(image, offset, address, size)
    segments = [*insert_loads(segments, [load]), sframe]
    dropped = [segment for segment in image.elf.segments if segment not in kept]
    gaps, file_end = add_gap_for_new_bytes(image, offset + size)
    spare_size = end_of_cleared_bytes(image, reserved_end) - end
    return LayoutDraft(
        "front", gaps, image.table.start, segments, [load, sframe], section, file_end, moves, dropped, [], spare_size
    )


def table_end(image: Image, kept: list[Phdr]) -> int:
    """Return the file offset after the new program header table, which has the `kept` headers and the new ones."""
    return image.table.start + (len(kept) + NEW_SEGMENTS) * PHDR_SIZE


def end_of_cleared_bytes(image: Image, reserved_end: int) -> int:
    """Return the end of the bytes to clear after the table: the reserved ones, and the old bytes of metadata that moved."""
    return max(
        [reserved_end, *(min(piece.end, FIRST_PAGE) for piece in find_overlapping(image.movable, image.table.end, reserved_end))]
    )


def is_unused(segment: Phdr, segments: list[Phdr]) -> bool:
    """Return True for PT_NULL, and for the second PT_NOTE that GNU ld writes for PT_GNU_PROPERTY, which nobody reads."""
    return segment.p_type == PT.NULL or (segment.p_type == PT.NOTE and segment._replace(p_type=PT.GNU_PROPERTY) in segments)


def choose_pieces_to_move(image: Image, end: int) -> tuple[list[Extent], list[tuple[Extent, int]]]:
    """Return (ranges to move to the new segment, (range, new offset) of a build-id in the way) for a table up to `end`.

    The build-id gets the offset at which the fewest other bytes have to move.
    """
    start = image.table.end
    blocking = find_overlapping(image.fixed, start, end)
    if blocking:
        raise no_room_error(image, f"{', '.join(blocking[0].names) or 'a segment'} cannot move")
    if not can_extend_segment(image, end):
        raise no_room_error(image, "its segment ends after it")
    obstructing = find_overlapping(image.movable, start, end)
    build_id = next(filter(image.has_build_id, obstructing), None)
    if build_id is None:
        return obstructing, []
    candidates = [offset for offset in candidate_offsets(image, end, build_id) if piece_fits(image, offset, build_id)]
    if not candidates:
        raise no_room_error(image, BUILD_ID_WOULD_LEAVE)

    def pieces_to_move(offset: int) -> list[Extent]:
        moving = {*obstructing, *find_overlapping(image.movable, offset, offset + build_id.size)} - {build_id}
        return sorted(moving)

    best_offset = min(candidates, key=lambda offset: (sum(piece.size for piece in pieces_to_move(offset)), offset))
    return pieces_to_move(best_offset), [(build_id, best_offset)]


def candidate_offsets(image: Image, end: int, piece: Extent) -> list[int]:
    """Return offsets in the first page where a range could begin: after the table, or after another movable or fixed range."""
    ends = {end, *(item.end for item in [*image.movable, *image.fixed] if end <= item.end < FIRST_PAGE)}
    return sorted({align_up(at, piece.align) for at in ends})


def piece_fits(image: Image, offset: int, piece: Extent) -> bool:
    """Return True if the piece can be written at that offset: in the first page, in the table's segment, over nothing fixed."""
    end = offset + piece.size
    return end <= FIRST_PAGE and can_extend_segment(image, end) and not find_overlapping(image.fixed, offset, end)


def can_extend_segment(image: Image, end: int) -> bool:
    """Return True if the table's segment reaches file offset `end`, or can grow to it within the unused rest of its last page."""
    load = image.table_load
    if load is None:
        return True
    load_end = load.p_offset + load.p_filesz
    if end <= load_end:
        return True
    others = [other for other in image.loads if other is not load]
    addresses_above = [other.p_vaddr for other in others if other.p_vaddr > load.p_vaddr]
    page_end = align_up(load.p_vaddr + load.p_filesz, FIRST_PAGE)
    return (
        load.p_filesz == load.p_memsz
        and end - load_end <= page_end - load.p_vaddr - load.p_filesz
        and not any(other.p_offset < end and load_end < other.p_offset + other.p_filesz for other in others)
        and page_end <= min(addresses_above, default=page_end)
    )


def address_at(image: Image, offset: int) -> int:
    """Return the address of a byte of the table's segment, 0 if no segment maps the table."""
    return offset + image.table_load.p_vaddr - image.table_load.p_offset if image.table_load else 0


def make_move(image: Image, piece: Extent, to_offset: int, to_address: int) -> Move:
    return Move(piece.names, piece.size, piece.start, to_offset, address_at(image, piece.start), to_address)


def grow_program_header(image: Image, segment: Phdr, kept: list[Phdr], used_end: int) -> Phdr:
    """Return the program header, enlarged if it is PT_PHDR or the PT_LOAD that maps the larger table."""
    if segment.p_type == PT.PHDR:
        size = (len(kept) + NEW_SEGMENTS) * PHDR_SIZE
        return segment._replace(p_filesz=size, p_memsz=size)
    if segment.p_type == PT.LOAD and segment is image.table_load:
        size = max(segment.p_filesz, used_end - segment.p_offset)
        return segment._replace(p_filesz=size, p_memsz=max(segment.p_memsz, size))
    return segment
