"""The record at the very end of a changed file that gives the original back, byte for byte. Little-endian:

    for each range that was written over:  u64 offset, u64 size, the original bytes
    u64 size of the original file
    u32 number of ranges
    u32 CRC-32 of what was written over them, in that order, then of this record with 0 in place of the CRC
    u64 size of this record
    8 bytes of magic

No header names it, so that strip and its like drop it: what they write is another file, and has no way back.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

MAGIC = b"SFrmUndo"
ENTRY = struct.Struct("<QQ")
TRAILER = struct.Struct("<QIIQ8s")


class Change(NamedTuple):
    """A range of the original, at a file offset, with its bytes before and after."""

    offset: int
    old: bytes
    new: bytes


class Undo(NamedTuple):
    original_size: int
    old: list[tuple[int, bytes]]  # file offset, bytes

    def restore(self, file: BinaryIO) -> None:
        """Makes a copy of the changed file, open for update, the original."""
        for offset, data in self.old:
            file.seek(offset)
            file.write(data)
        file.truncate(self.original_size)


def record_size(ranges: Iterable[tuple[int, int]]) -> int:
    return TRAILER.size + sum(ENTRY.size + size for _, size in ranges)


def pack(original_size: int, changes: list[Change]) -> bytes:
    body = b"".join(ENTRY.pack(change.offset, len(change.old)) + change.old for change in changes)
    size = len(body) + TRAILER.size
    written = b"".join(change.new for change in changes)
    crc = zlib.crc32(written + body + TRAILER.pack(original_size, len(changes), 0, size, MAGIC))
    return body + TRAILER.pack(original_size, len(changes), crc, size, MAGIC)


def read(data: memoryview) -> Undo | None:
    """The record of a changed file; None where there is none, or where what it covers has changed since."""
    if len(data) < TRAILER.size:
        return None
    original_size, count, crc, size, magic = TRAILER.unpack_from(data, len(data) - TRAILER.size)
    if magic != MAGIC or not TRAILER.size <= size <= len(data) or original_size > len(data):
        return None
    body = data[len(data) - size : len(data) - TRAILER.size]
    old: list[tuple[int, bytes]] = []
    pos, current = 0, 0
    for _ in range(count):
        if pos + ENTRY.size > len(body):
            return None
        offset, length = ENTRY.unpack_from(body, pos)
        pos += ENTRY.size + length
        if pos > len(body) or offset + length > original_size:
            return None
        old.append((offset, bytes(body[pos - length : pos])))
        current = zlib.crc32(data[offset : offset + length], current)
    current = zlib.crc32(TRAILER.pack(original_size, count, 0, size, MAGIC), zlib.crc32(body, current))
    return Undo(original_size, old) if current == crc else None
