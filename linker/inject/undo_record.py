"""The undo record at the very end of a changed file, which restores the original byte for byte. Little-endian:

    for each range that was overwritten:   u64 offset, u64 size, the original bytes
    u64 size of the original file
    u32 number of ranges
    u32 CRC-32 of the new bytes in these ranges, in that order, then of all after the original's end, with 0 in place of the CRC
    u64 size of this record
    8 bytes of magic

No header names it, so that strip and similar tools drop it: they write another file, which cannot be restored. The same holds for
a file whose moved metadata was edited in its new place.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_right
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from sframegen.elf.ranges import Extent, join

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAGIC = b"SFrmUndo"
ENTRY = struct.Struct("<QQ")
TRAILER = struct.Struct("<QIIQ8s")
MAX_RANGES = 1 << 18  # a plan patches 65,536 symbols at most
CHUNK = 1 << 20  # bytes of a hole at a time


class Write(NamedTuple):
    """Bytes that change or are appended, at a file offset."""

    offset: int
    data: bytes | memoryview

    def __str__(self) -> str:
        return f"written over: {len(self.data):#x} bytes at offset {self.offset:#x}"


class Undo(NamedTuple):
    original_size: int
    old: list[tuple[int, bytes]]  # file offset, bytes
    start: int  # the record's own file offset

    def restore(self, file: BinaryIO) -> None:
        """Turn a copy of the changed file, open for update, into the original."""
        for offset, data in self.old:
            file.seek(offset)
            file.write(data)
        file.truncate(self.original_size)


def record_size(ranges: Iterable[tuple[int, int]]) -> int:
    return TRAILER.size + sum(ENTRY.size + size for _, size in ranges)


def overwritten(original_size: int, writes: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """(offset, size) of every range of the original that these (offset, size) change; ascending."""
    ranges = join(Extent(offset, offset + size) for offset, size in writes if offset < original_size)
    return [(item.start, item.size) for item in ranges]


def record(original: memoryview, writes: Iterable[Write]) -> bytes:
    """Return the record of a file made from `original` with these writes, in their order, and nothing else.

    None of them reaches across the original's end.
    """
    size, written = len(original), contents(writes)
    old = [(offset, bytes(original[offset : offset + len(data)])) for offset, data in written if offset < size]
    new = [data for offset, data in written if offset < size]
    return pack(size, old, [*new, *with_holes(size, written[len(old) :])])


def contents(writes: Iterable[Write]) -> list[tuple[int, bytearray]]:
    """(offset, bytes) after all writes, of every range that they cover; ascending."""
    ordered = list(writes)
    ranges = join(Extent(offset, offset + len(data)) for offset, data in ordered)
    result = [(item.start, bytearray(item.size)) for item in ranges]
    starts = [start for start, _ in result]
    for offset, data in ordered:
        start, whole = result[bisect_right(starts, offset) - 1]
        whole[offset - start : offset - start + len(data)] = data
    return result


def with_holes(end: int, pieces: Iterable[tuple[int, bytearray]]) -> Iterator[bytes | bytearray]:
    """Yield ascending pieces with the zeros between them, as the file system has them; the file so far ends at `end`."""
    for offset, data in pieces:
        for start in range(end, offset, CHUNK):
            yield bytes(min(CHUNK, offset - start))
        yield data
        end = offset + len(data)


def pack(original_size: int, old: list[tuple[int, bytes]], new: Iterable[bytes | bytearray]) -> bytes:
    """`new`: the bytes that replaced `old`, then the appended ones."""
    body = b"".join(ENTRY.pack(offset, len(data)) + data for offset, data in old)
    size = len(body) + TRAILER.size
    crc = checksum([*new, body, TRAILER.pack(original_size, len(old), 0, size, MAGIC)])
    return body + TRAILER.pack(original_size, len(old), crc, size, MAGIC)


def checksum(pieces: Iterable[bytes | bytearray | memoryview]) -> int:
    crc = 0
    for piece in pieces:
        crc = zlib.crc32(piece, crc)
    return crc


def read(data: memoryview) -> Undo | None:
    """Return the record of a changed file; None without one, or if bytes that it covers have changed since."""
    found = parse(data)
    if found is None:
        return None
    original_size, count, crc, size, _ = TRAILER.unpack_from(data, len(data) - TRAILER.size)
    new = [data[offset : offset + len(before)] for offset, before in found.old]
    unsigned = TRAILER.pack(original_size, count, 0, size, MAGIC)
    return found if checksum([*new, data[original_size : len(data) - TRAILER.size], unsigned]) == crc else None


def parse(data: memoryview) -> Undo | None:
    """Return the record at the end of a file, even if the file has changed since."""
    if len(data) < TRAILER.size:
        return None
    original_size, count, _, size, magic = TRAILER.unpack_from(data, len(data) - TRAILER.size)
    start, end = len(data) - size, len(data) - TRAILER.size
    if magic != MAGIC or not original_size <= start <= end or count > MAX_RANGES:
        return None
    old: list[tuple[int, bytes]] = []
    pos = start
    for _ in range(count):
        if pos + ENTRY.size > end:
            return None
        offset, length = ENTRY.unpack_from(data, pos)
        pos += ENTRY.size + length
        if pos > end or offset + length > original_size:
            return None
        old.append((offset, bytes(data[pos - length : pos])))
    return Undo(original_size, old, start)
