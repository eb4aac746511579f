"""The front layout: the program header table grows in place, and the metadata after it makes room.

That metadata moves into the new segment, after `.sframe`. The build-id stays in the first page of the file: it takes the
place of other metadata there, or the padding after the first segment.
"""

from __future__ import annotations

from linker.inject.image import MAX_ADDRESS, Image
from linker.inject.layout import (
    BUILD_ID_LEAVES,
    LayoutDraft,
    Move,
    follow_segment,
    gap_after,
    insert_loads,
    load_at,
    no_room,
    sframe_at,
)
from linker.inject.movable import FIRST_PAGE
from sframegen.base.errors import Refusal, RefusedError
from sframegen.elf.ranges import Extent, align_up, find_overlapping
from sframegen.elf.records import PHDR_SIZE, PT, Phdr

NEW_SEGMENTS = 2  # PT_LOAD and PT_GNU_SFRAME
END_OF_HASH = 8  # bytes after moved metadata: LIEF 1.0 does not read a .gnu.hash that ends with its segment


def front(image: Image, section_size: int, spare: int) -> LayoutDraft:
    """Draft the layout, with room for `spare` headers after the table. Raises RefusedError if a piece in the way cannot move."""
    kept = image.segments
    end = table_end(image, kept)
    if find_overlapping(image.pieces, image.table.end, end) or find_overlapping(image.blocks, image.table.end, end):
        kept = [segment for segment in kept if not is_unused(segment, kept)]
        end = table_end(image, kept)
    room = end + spare * PHDR_SIZE
    moved, stays = make_room(image, room)
    used = max([end, *(to + piece.size for piece, to in stays)])

    offset = align_up(image.room, 8)
    address = align_up(image.end_address, image.page) + offset % image.page
    moves = [move(image, piece, to, to - piece.start + address_at(image, piece.start)) for piece, to in stays]
    at = section_size
    for piece in moved:
        at = align_up(offset + at, piece.align) - offset
        moves.append(move(image, piece, offset + at, address + at))
        at += piece.size
    at += END_OF_HASH if moved else 0
    if address + at > MAX_ADDRESS:
        message = f"the last segment ends at {image.end_address:#x}: no addresses are left after it"
        raise RefusedError(Refusal.NO_ROOM, message, "program header table", file=image.elf.name)

    sframe, section = sframe_at(offset, address, section_size)
    segments = [follow_segment(grow(image, segment, kept, used), moves) for segment in kept]
    load = load_at(image, offset, address, at)
    segments = [*insert_loads(segments, [load]), sframe]
    dropped = [segment for segment in image.elf.segments if segment not in kept]
    gaps, file_end = gap_after(image, offset + at)
    spare_size = cleared_end(image, room) - end
    return LayoutDraft(
        "front", gaps, image.table.start, segments, [load, sframe], section, file_end, moves, dropped, [], spare_size
    )


def table_end(image: Image, kept: list[Phdr]) -> int:
    return image.table.start + (len(kept) + NEW_SEGMENTS) * PHDR_SIZE


def cleared_end(image: Image, room: int) -> int:
    """Return the end of the unused bytes after the table: room for more headers, and remains of moved metadata."""
    return max([room, *(min(piece.end, FIRST_PAGE) for piece in find_overlapping(image.pieces, image.table.end, room))])


def is_unused(segment: Phdr, segments: list[Phdr]) -> bool:
    """Return True for an unused header, or GNU ld's PT_NOTE for the bytes of PT_GNU_PROPERTY, which nobody reads."""
    return segment.p_type == PT.NULL or (segment.p_type == PT.NOTE and segment._replace(p_type=PT.GNU_PROPERTY) in segments)


def make_room(image: Image, end: int) -> tuple[list[Extent], list[tuple[Extent, int]]]:
    """Return (pieces to move to the new segment, pieces that stay in the first page, with new offsets) for a table up to `end`."""
    start = image.table.end
    blocks = find_overlapping(image.blocks, start, end)
    if blocks:
        raise no_room(image, f"{', '.join(blocks[0].names) or 'a segment'} cannot move")
    if not may_extend(image, end):
        raise no_room(image, "its segment ends after it")
    in_way = find_overlapping(image.pieces, start, end)
    build_id = next(filter(image.has_build_id, in_way), None)
    if build_id is None:
        return in_way, []
    rooms = [place for place in places(image, end, build_id) if fits(image, place, build_id)]
    if not rooms:
        raise no_room(image, BUILD_ID_LEAVES)

    def moved(place: int) -> list[Extent]:
        wanted = {*in_way, *find_overlapping(image.pieces, place, place + build_id.size)} - {build_id}
        return sorted(wanted)

    best = min(rooms, key=lambda place: (sum(piece.size for piece in moved(place)), place))
    return moved(best), [(build_id, best)]


def places(image: Image, end: int, piece: Extent) -> list[int]:
    """Return offsets in the first page where a piece could begin: after the table, or after any other piece or block."""
    ends = {end, *(item.end for item in [*image.pieces, *image.blocks] if end <= item.end < FIRST_PAGE)}
    return sorted({align_up(place, piece.align) for place in ends})


def fits(image: Image, place: int, piece: Extent) -> bool:
    last = place + piece.size
    return last <= FIRST_PAGE and may_extend(image, last) and not find_overlapping(image.blocks, place, last)


def may_extend(image: Image, end: int) -> bool:
    """Return True if the table's segment reaches file offset `end`, or can grow to it within its last, otherwise unused page."""
    load = image.load
    if load is None:
        return True
    last = load.p_offset + load.p_filesz
    if end <= last:
        return True
    above = [other.p_vaddr for other in image.loads if other.p_vaddr > load.p_vaddr]
    others = [
        other for other in image.loads if other is not load and other.p_offset < end and last < other.p_offset + other.p_filesz
    ]
    page_end = align_up(load.p_vaddr + load.p_filesz, FIRST_PAGE)
    return (
        load.p_filesz == load.p_memsz
        and end - last <= page_end - load.p_vaddr - load.p_filesz
        and not others
        and page_end <= min(above, default=page_end)
    )


def address_at(image: Image, offset: int) -> int:
    return offset + image.load.p_vaddr - image.load.p_offset if image.load else 0


def move(image: Image, piece: Extent, to_offset: int, to_address: int) -> Move:
    return Move(piece.names, piece.size, piece.start, to_offset, address_at(image, piece.start), to_address)


def grow(image: Image, segment: Phdr, kept: list[Phdr], used: int) -> Phdr:
    """Return the program header, enlarged if it is PT_PHDR or the PT_LOAD that holds the larger table."""
    if segment.p_type == PT.PHDR:
        size = (len(kept) + NEW_SEGMENTS) * PHDR_SIZE
        return segment._replace(p_filesz=size, p_memsz=size)
    if segment.p_type == PT.LOAD and segment is image.load:
        size = max(segment.p_filesz, used - segment.p_offset)
        return segment._replace(p_filesz=size, p_memsz=max(segment.p_memsz, size))
    return segment
