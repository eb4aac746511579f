"""The undo record at the very end of a changed file, which restores the original byte for byte. Little-endian:

    for each gap between the original's bytes:   u64 offset + 2^63, u64 size
    for each range that was overwritten:   u64 offset, u64 size, the original bytes
    u64 size of the original file
    u32 number of gaps and ranges
    u32 CRC-32 of the new bytes in these ranges, in that order, of the gaps, then of all after the original's end, with 0 in place
        of the CRC
    u64 size of this record
    8 bytes of magic

Offsets are those in the original. No header names it, and strip and similar tools drop it: they write another file, which
cannot be restored. The same holds for a file whose moved metadata was edited in its new place.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_right

from linker.files.copying import FilePart
from linker.inject.gaps import Gap, Gaps, moved, moved_back, opened_gaps, parts_of, total_size
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.elf.ranges import Extent, Range, index_of_containing_range, join_extents

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


MAGIC = b"SFrmUndo"
ENTRY = struct.Struct("<QQ")
TRAILER = struct.Struct("<QIIQ8s")
MAX_RANGES = 1 << 18  # a plan patches 65,536 symbols at most
MAX_GAPS = 2  # one before the headers, one after what is loaded
IS_GAP = 1 << 63
END = 1 << 64  # after every offset
CHUNK = 1 << 20  # bytes of a hole at a time


class Write(NamedTuple):
    """A write of new bytes at a file offset, over old bytes or at the end of the file."""

    offset: int
    data: bytes | memoryview

    def __str__(self) -> str:
        return f"written over: {len(self.data):#x} bytes at offset {self.offset:#x}"


class Undo(NamedTuple):
    """An undo record: the original's size, the bytes that were overwritten, and the gaps that were opened."""

    original_size: int
    old: list[tuple[int, bytes]]  # (offset in the original, the original bytes) of each overwritten range
    start: int  # the record's own offset in the changed file
    gaps: Gaps = ()

    @property
    def parts(self) -> list[FilePart]:
        """Return the parts of the changed file that make up the original, except for `old`."""
        return [FilePart(to, start, size) for start, to, size in parts_of(self.gaps, self.original_size)]

    @property
    def covered(self) -> list[Range]:
        """Return (start, end) of the changed file's ranges that the checksum covers, in its order."""
        end = self.original_size + total_size(self.gaps)
        starts = [(moved(self.gaps, offset), data) for offset, data in self.old]
        return [*((start, start + len(data)) for start, data in starts), *opened_gaps(self.gaps), (end, self.start)]


def record_size(ranges: Iterable[tuple[int, int]], gaps: Gaps = ()) -> int:
    return TRAILER.size + ENTRY.size * len(gaps) + sum(ENTRY.size + size for _, size in ranges)


def overwritten_ranges(original_size: int, writes: Iterable[tuple[int, int]], gaps: Gaps = ()) -> list[tuple[int, int]]:
    """Return (offset, size) of each range of the original that writes of (offset, size) in the new file change, ascending."""
    ranges = join_extents(Extent(offset, offset + size) for offset, size in writes)
    new = [*opened_gaps(gaps), (original_size + total_size(gaps), END)]
    return [(moved_back(gaps, item.start), item.size) for item in ranges if index_of_containing_range(new, item.start) is None]


def make_record(original: memoryview, writes: Iterable[Write], gaps: Gaps = (), start: int | None = None) -> bytes:
    """Return the record of a file made from `original` by only opening these gaps, then applying these writes in order.

    Writes must not cross the original's end, or an end of a gap. `start`: the record's offset, by default after all writes.
    """
    size, written = len(original), final_contents(writes)
    new = [*opened_gaps(gaps), (size + total_size(gaps), END if start is None else start)]
    added: list[list[tuple[int, bytearray]]] = [[] for _ in new]
    changed: list[bytearray] = []
    old: list[tuple[int, bytes]] = []
    for offset, data in written:
        number = index_of_containing_range(new, offset)
        if number is not None:
            added[number].append((offset, data))
            continue
        changed.append(data)
        start = moved_back(gaps, offset)
        old.append((start, bytes(original[start : start + len(data)])))
    filled = [data for (start, end), pieces in zip(new, added, strict=True) for data in with_holes(start, pieces, end)]
    return pack(Undo(size, old, 0, gaps), [*changed, *filled])


def final_contents(writes: Iterable[Write]) -> list[tuple[int, bytearray]]:
    """Return (offset, final bytes) of each range that the writes cover, ascending."""
    ordered = list(writes)
    ranges = join_extents(Extent(offset, offset + len(data)) for offset, data in ordered)
    result = [(item.start, bytearray(item.size)) for item in ranges]
    starts = [start for start, _ in result]
    for offset, data in ordered:
        start, whole = result[bisect_right(starts, offset) - 1]
        whole[offset - start : offset - start + len(data)] = data
    return result


def with_holes(start: int, pieces: Iterable[tuple[int, bytearray]], end: int) -> Iterator[bytes | bytearray]:
    """Yield ascending pieces and the zeros around them, from `start` to `end`; up to the last piece if `end` is END."""
    for offset, data in [*pieces, *([(end, bytearray())] if end != END else [])]:
        for at in range(start, offset, CHUNK):
            yield bytes(min(CHUNK, offset - at))
        yield data
        start = offset + len(data)


def pack(undo: Undo, new: Iterable[bytes | bytearray]) -> bytes:
    """Return the record's bytes. `new`: the changed file's bytes that its checksum covers."""
    entries = [ENTRY.pack(at | IS_GAP, size) for at, size in undo.gaps]
    body = b"".join([*entries, *(ENTRY.pack(offset, len(data)) + data for offset, data in undo.old)])
    size, count = len(body) + TRAILER.size, len(entries) + len(undo.old)
    crc = checksum([*new, body, TRAILER.pack(undo.original_size, count, 0, size, MAGIC)])
    return body + TRAILER.pack(undo.original_size, count, crc, size, MAGIC)


def checksum(pieces: Iterable[bytes | bytearray | memoryview]) -> int:
    crc = 0
    for piece in pieces:
        crc = zlib.crc32(piece, crc)
    return crc


def read_verified(data: memoryview) -> Undo | None:
    """Return the record of a changed file; None without one, or if bytes that it covers have changed since."""
    found = read_unverified(data)
    if found is None:
        return None
    original_size, count, crc, size, _ = TRAILER.unpack_from(data, len(data) - TRAILER.size)
    covered = [data[start:end] for start, end in found.covered]
    body = data[found.start : len(data) - TRAILER.size]
    return found if checksum([*covered, body, TRAILER.pack(original_size, count, 0, size, MAGIC)]) == crc else None


def read_unverified(data: memoryview) -> Undo | None:
    """Return the record at the end of a file, even if the file has changed since."""
    if len(data) < TRAILER.size:
        return None
    original_size, count, _, size, magic = TRAILER.unpack_from(data, len(data) - TRAILER.size)
    start, end = len(data) - size, len(data) - TRAILER.size
    if magic != MAGIC or not original_size <= start <= end or count > MAX_RANGES:
        return None
    old: list[tuple[int, bytes]] = []
    gaps: list[Gap] = []
    pos = start
    for _ in range(count):
        if pos + ENTRY.size > end:
            return None
        offset, length = ENTRY.unpack_from(data, pos)
        pos += ENTRY.size
        if offset & IS_GAP:
            gaps.append(Gap(offset ^ IS_GAP, length))
            continue
        pos += length
        if pos > end or offset + length > original_size:
            return None
        old.append((offset, bytes(data[pos - length : pos])))
    if not are_sound(gaps, original_size, start):
        return None
    return Undo(original_size, old, start, tuple(gaps))


def are_sound(gaps: list[Gap], original_size: int, start: int) -> bool:
    """Return True if the gaps ascend within the original, and the record at `start` lies after all of its bytes."""
    places = [gap.at for gap in gaps]
    return (
        len(gaps) <= MAX_GAPS
        and places == sorted(set(places))
        and all(gap.size and gap.at < original_size for gap in gaps)
        and original_size + sum(gap.size for gap in gaps) <= start
    )
