"""Encodes and reads the undo record at the very end of a changed file, which restores the original byte for byte.

Its fields are little-endian:

    for each gap between the original's bytes:   u64 offset + 2^63, u64 size
    for each range that was overwritten:   u64 offset, u64 size, the original bytes
    u64 size of the original file
    u32 number of gaps and ranges
    u32 CRC-32 of the new bytes in these ranges, then in the gaps, then of everything after the original's end, with 0 in place
        of the CRC
    u64 size of this record
    8 bytes of magic

Offsets are offsets in the original. No ELF header names the record, so strip and similar tools drop it, and the file that they
write cannot be restored. Neither can a file whose moved metadata was edited at its new offset.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_right
from itertools import chain

from linker.files.copying import FilePart
from linker.inject.gaps import Gap, Gaps, gaps_in_new_file, parts_to_copy, to_new_offset, to_original_offset, total_size
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.elf.ranges import Extent, Range, index_of_containing_range, join_extents

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAGIC = b"SFrmUndo"
ENTRY = struct.Struct("<QQ")
TRAILER = struct.Struct("<QIIQ8s")
MAX_RANGES = 1 << 18  # limits the work on hostile files: a plan needs a quarter, as it patches at most 65,536 symbols
MAX_GAPS = 2  # one before the headers, one after all loaded bytes
GAP_FLAG = 1 << 63  # added to the offset in an entry for a gap
UNBOUNDED = 1 << 64  # greater than every offset
ZERO_CHUNK = 1 << 20  # bytes of a hole that are yielded at a time


class Write(NamedTuple):
    """A write of bytes at a file offset, over old bytes or at the end of the file."""

    offset: int
    data: bytes | memoryview

    def __str__(self) -> str:
        return f"written over: {len(self.data):#x} bytes at offset {self.offset:#x}"


class UndoRecord(NamedTuple):
    """An undo record: the original's size, the bytes that were overwritten, and the gaps that were opened."""

    original_size: int
    overwritten: list[tuple[int, bytes]]  # (offset in the original, the original bytes) of each overwritten range
    start: int  # the record's own offset in the changed file
    gaps: Gaps = ()

    @property
    def parts(self) -> list[FilePart]:
        """Return the parts of the changed file that make up the original, except for `overwritten`."""
        return [FilePart(new, old, size) for old, new, size in parts_to_copy(self.gaps, self.original_size)]

    @property
    def covered(self) -> list[Range]:
        """Return (start, end) of the changed file's ranges that the checksum covers.

        They are in the order of the checksum, as in `make_record` and in the docstring of this module.
        """
        end = self.original_size + total_size(self.gaps)
        starts = [(to_new_offset(self.gaps, offset), data) for offset, data in self.overwritten]
        return [*((start, start + len(data)) for start, data in starts), *gaps_in_new_file(self.gaps), (end, self.start)]


def compute_record_size(ranges: Iterable[tuple[int, int]], gaps: Gaps = ()) -> int:
    """Return the size of the undo record of a file in which these (offset, size) ranges are overwritten."""
    return TRAILER.size + ENTRY.size * len(gaps) + sum(ENTRY.size + size for _, size in ranges)


def find_overwritten_ranges(original_size: int, writes: Iterable[tuple[int, int]], gaps: Gaps = ()) -> list[tuple[int, int]]:
    """Return (offset, size) of each range of the original that `writes` overwrite, ascending.

    `writes`: (offset, size) in the new file; those in gaps or after the original's end overwrite nothing.
    """
    ranges = join_extents(Extent(offset, offset + size) for offset, size in writes)
    added = find_added_ranges(gaps, original_size)
    overwritten = (item for item in ranges if index_of_containing_range(added, item.start) is None)
    return [(to_original_offset(gaps, item.start), item.size) for item in overwritten]


def find_added_ranges(gaps: Gaps, original_size: int, end: int = UNBOUNDED) -> list[Range]:
    """Return the ranges [start, end) of the new file that have no bytes of the original: the gaps, and all after its last byte."""
    return [*gaps_in_new_file(gaps), (original_size + total_size(gaps), end)]


def make_record(original: memoryview, writes: Iterable[Write], gaps: Gaps = (), start: int | None = None) -> bytes:
    """Return the undo record of a file that is `original` with these gaps opened and then these writes applied in order.

    No write may cross the original's end, or the start or end of a gap. `start`: the record's offset, by default after all writes.
    """
    # Writes in these ranges overwrite nothing, and are only part of the checksum.
    added_ranges = find_added_ranges(gaps, len(original), UNBOUNDED if start is None else start)
    added_writes: list[list[tuple[int, bytearray]]] = [[] for _ in added_ranges]
    changed: list[bytearray] = []
    overwritten: list[tuple[int, bytes]] = []
    for offset, data in merge_writes(writes):
        number = index_of_containing_range(added_ranges, offset)
        if number is not None:
            added_writes[number].append((offset, data))
            continue
        changed.append(data)
        old_offset = to_original_offset(gaps, offset)
        overwritten.append((old_offset, bytes(original[old_offset : old_offset + len(data)])))
    added = (fill_holes_with_zeros(begin, pieces, end) for (begin, end), pieces in zip(added_ranges, added_writes, strict=True))
    undo = UndoRecord(len(original), overwritten, start=0, gaps=gaps)  # a record does not contain its own start
    return encode_record(undo, [*changed, *chain.from_iterable(added)])


def merge_writes(writes: Iterable[Write]) -> list[tuple[int, bytearray]]:
    """Return (offset, final bytes) of each range that the writes cover, ascending; later writes win where they overlap."""
    ordered = list(writes)
    ranges = join_extents(Extent(offset, offset + len(data)) for offset, data in ordered)
    result = [(item.start, bytearray(item.size)) for item in ranges]
    starts = [start for start, _ in result]
    for offset, data in ordered:
        start, contents = result[bisect_right(starts, offset) - 1]
        contents[offset - start : offset - start + len(data)] = data
    return result


def fill_holes_with_zeros(start: int, pieces: Iterable[tuple[int, bytearray]], end: int) -> Iterator[bytes | bytearray]:
    """Yield ascending pieces, with zeros in the holes from `start` to `end`; if that is UNBOUNDED, up to the last piece."""
    last = [] if end == UNBOUNDED else [(end, bytearray())]  # an empty piece, so that zeros reach up to the end
    for offset, data in [*pieces, *last]:
        for at in range(start, offset, ZERO_CHUNK):
            yield bytes(min(ZERO_CHUNK, offset - at))
        yield data
        start = offset + len(data)


def encode_record(undo: UndoRecord, checked: Iterable[bytes | bytearray]) -> bytes:
    """Return the bytes of an undo record. `checked`: the changed file's bytes that the checksum covers."""
    entries = [ENTRY.pack(at | GAP_FLAG, size) for at, size in undo.gaps]
    body = b"".join([*entries, *(ENTRY.pack(offset, len(data)) + data for offset, data in undo.overwritten)])
    size, count = len(body) + TRAILER.size, len(entries) + len(undo.overwritten)
    crc = crc_of_pieces([*checked, body, TRAILER.pack(undo.original_size, count, 0, size, MAGIC)])
    return body + TRAILER.pack(undo.original_size, count, crc, size, MAGIC)


def crc_of_pieces(pieces: Iterable[bytes | bytearray | memoryview]) -> int:
    crc = 0
    for piece in pieces:
        crc = zlib.crc32(piece, crc)
    return crc


def read_verified(data: memoryview) -> UndoRecord | None:
    """Return the undo record of a changed file; None if it has none, or if bytes that the checksum covers have changed since."""
    record = read_unverified(data)
    if record is None:
        return None
    original_size, count, crc, size, _ = TRAILER.unpack_from(data, len(data) - TRAILER.size)
    covered = [data[start:end] for start, end in record.covered]
    body = data[record.start : len(data) - TRAILER.size]
    return record if crc_of_pieces([*covered, body, TRAILER.pack(original_size, count, 0, size, MAGIC)]) == crc else None


def read_unverified(data: memoryview) -> UndoRecord | None:
    """Return the undo record at the end of a file without comparing its checksum; None if there is none."""
    if len(data) < TRAILER.size:
        return None
    original_size, count, _, size, magic = TRAILER.unpack_from(data, len(data) - TRAILER.size)
    start, end = len(data) - size, len(data) - TRAILER.size
    if magic != MAGIC or not original_size <= start <= end or count > MAX_RANGES:
        return None
    overwritten: list[tuple[int, bytes]] = []
    gaps: list[Gap] = []
    at = start
    for _ in range(count):
        if at + ENTRY.size > end:
            return None
        offset, length = ENTRY.unpack_from(data, at)
        at += ENTRY.size
        if offset & GAP_FLAG:
            gaps.append(Gap(offset ^ GAP_FLAG, length))
            continue
        at += length
        if at > end or offset + length > original_size:
            return None
        overwritten.append((offset, bytes(data[at - length : at])))
    if not are_valid_gaps(gaps, original_size, start):
        return None
    return UndoRecord(original_size, overwritten, start, tuple(gaps))


def are_valid_gaps(gaps: list[Gap], original_size: int, start: int) -> bool:
    """Return True if the gaps ascend within the original, and the record at `start` follows all of the original's bytes."""
    offsets = [gap.at for gap in gaps]
    return (
        len(gaps) <= MAX_GAPS
        and offsets == sorted(set(offsets))
        and all(gap.size and gap.at < original_size for gap in gaps)
        and original_size + sum(gap.size for gap in gaps) <= start
    )
