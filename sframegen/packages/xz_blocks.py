"""xz streams whose blocks have their sizes in their headers: from these, dpkg and others decompress the blocks in parallel.

Only liblzma's threaded encoder writes such headers, and Python's lzma does not have it. So lzma compresses each block as a stream
of its own, and the block is taken out of that: its data and its check stay, and its header gets the sizes.
"""

from __future__ import annotations

import lzma
import struct
import zlib
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Self

if TYPE_CHECKING:
    from types import TracebackType

HEADER_SIZE = FOOTER_SIZE = 12  # of the stream
MAGIC, FOOTER_MAGIC = b"\xfd7zXZ\0", b"YZ"
FLAGS_AT = 6  # two bytes of the stream's header; the low half of the second is the kind of check
CHECK_SIZES = (0, 4, 4, 4, 8, 8, 8, 16, 16, 16, 32, 32, 32, 64, 64, 64)
HAS_COMPRESSED, HAS_UNCOMPRESSED, FILTERS = 0x40, 0x80, 0x03  # flags of a block; the last is the number of filters, less one
LZMA2 = b"\x21\x01"  # its id, and the size of its properties: one byte, the dictionary's
LZMA2_CHUNK, LZMA2_CHUNK_HEADER = 1 << 16, 3  # of data that cannot be compressed
AROUND_BLOCK = 92  # bytes: the largest header and check
MAX_NUMBER = 9  # bytes
MIN_BLOCK = 1 << 16  # bytes; the encoder of each block starts with an empty dictionary
MAX_BLOCK = 1 << 40  # bytes; no tool writes larger ones
KEPT_IN_MEMORY = 32 << 20  # bytes of a compressed block
WORD = struct.Struct("<I")


class FirstBlock(NamedTuple):
    """What a stream's first block header says. Sizes are in bytes; -1: not in the header."""

    dictionary: int  # 0: its filter is not LZMA2 alone
    compressed: int
    uncompressed: int
    next_at: int  # offset of what follows the block, in the stream


def first_block(beginning: bytes) -> FirstBlock | None:
    """Read the header of the first block of a stream that begins so; None if the stream has none, or not all of it is there."""
    if len(beginning) < HEADER_SIZE + 2 or not beginning[HEADER_SIZE]:
        return None
    size, flags, at = (beginning[HEADER_SIZE] + 1) * 4, beginning[HEADER_SIZE + 1], HEADER_SIZE + 2
    compressed = uncompressed = -1
    if flags & HAS_COMPRESSED:
        compressed, at = _read_number(beginning, at)
    if flags & HAS_UNCOMPRESSED:
        uncompressed, at = _read_number(beginning, at)
    if at + 3 > len(beginning):
        return None
    is_plain = flags & FILTERS == 0 and beginning[at : at + 2] == LZMA2
    bits = beginning[at + 2] & 63
    dictionary = (2 | bits & 1) << (bits // 2 + 11) if is_plain else 0
    check = CHECK_SIZES[beginning[FLAGS_AT + 1] & 15]
    return FirstBlock(dictionary, compressed, uncompressed, HEADER_SIZE + size + compressed + -compressed % 4 + check)


class BlockWriter:
    """Write a stream with a block for each `block_size` bytes, in a `with` block. Equal input gives equal bytes."""

    def __init__(self, target: BinaryIO, preset: int, check: int, block_size: int) -> None:
        self._target, self._preset, self._check = target, preset, check
        self._block_size = block_size
        self._index: list[tuple[int, int]] = []  # of each block: its size without padding, and its uncompressed size
        self._encoder: lzma.LZMACompressor | None = None
        self._written = 0  # uncompressed bytes of the open block
        self._stream = SpooledTemporaryFile(KEPT_IN_MEMORY)  # noqa: SIM115 - closed with the writer
        target.write(_stream_header(check))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._stream:
            if kind is None:
                self._end_block()
                index = _index(self._index)
                self._target.write(index)
                self._target.write(_footer(self._check, len(index)))

    def write(self, data: bytes, /) -> int:
        rest = memoryview(data).cast("B")
        while rest:
            if self._encoder is None:
                self._encoder = lzma.LZMACompressor(lzma.FORMAT_XZ, self._check, self._preset)
            taken = rest[: self._block_size - self._written]
            self._stream.write(self._encoder.compress(taken))
            self._written += len(taken)
            rest = rest[len(taken) :]
            if self._written == self._block_size:
                self._end_block()
        return len(data)

    def _end_block(self) -> None:
        if self._encoder is None:
            return
        self._stream.write(self._encoder.flush())
        end = self._stream.tell() - FOOTER_SIZE
        self._stream.seek(end + 4)
        end -= (WORD.unpack(self._stream.read(4))[0] + 1) * 4  # the index
        self._stream.seek(HEADER_SIZE)
        size = (self._stream.read(1)[0] + 1) * 4
        given = self._stream.read(size - 1)
        self._stream.seek(end + 2)  # after the mark of an index, and the number of blocks
        unpadded, _ = _read_number(self._stream.read(MAX_NUMBER), 0)
        filters = given[1:4]
        room = len(_block_header(filters, _bound(self._block_size), self._block_size))
        header = _block_header(filters, unpadded - size - CHECK_SIZES[self._check], self._written, room)
        self._target.write(header)
        self._stream.seek(HEADER_SIZE + size)
        for at in range(HEADER_SIZE + size, end, KEPT_IN_MEMORY):
            self._target.write(self._stream.read(min(KEPT_IN_MEMORY, end - at)))
        self._index.append((unpadded - size + len(header), self._written))
        self._stream.seek(0)
        self._stream.truncate()
        self._encoder, self._written = None, 0


def _stream_header(check: int) -> bytes:
    flags = bytes((0, check))
    return MAGIC + flags + _sum(flags)


def _footer(check: int, index_size: int) -> bytes:
    fields = WORD.pack(index_size // 4 - 1) + bytes((0, check))
    return _sum(fields) + fields + FOOTER_MAGIC


def _block_header(filters: bytes, compressed: int, uncompressed: int, room: int = 0) -> bytes:
    """`filters`: LZMA2's part of a header. `room`: the size of the header, if that is more than it needs."""
    fields = bytes((HAS_COMPRESSED | HAS_UNCOMPRESSED,)) + _number(compressed) + _number(uncompressed) + filters
    fields += bytes(max(-(len(fields) + 1) % 4, room - len(fields) - 1 - WORD.size))
    return _with_sum(bytes(((len(fields) + 1) // 4,)) + fields)


def _bound(size: int) -> int:
    """The most that liblzma expects of a block of that size. It makes room in each header for this; so do we, for equal bytes."""
    data = size + -(-size // LZMA2_CHUNK) * LZMA2_CHUNK_HEADER + 1
    return data + -data % 4 + AROUND_BLOCK


def _index(blocks: list[tuple[int, int]]) -> bytes:
    fields = b"\0" + _number(len(blocks)) + b"".join(_number(size) for block in blocks for size in block)
    return _with_sum(fields + bytes(-len(fields) % 4))


def _with_sum(fields: bytes) -> bytes:
    return fields + _sum(fields)


def _sum(fields: bytes) -> bytes:
    return WORD.pack(zlib.crc32(fields))


def _number(value: int) -> bytes:
    """In groups of seven bits, the lowest first; the top bit of a byte says that another follows."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_number(data: bytes, at: int) -> tuple[int, int]:
    """The number at an offset, and where it ends."""
    value = 0
    for count, byte in enumerate(data[at : at + MAX_NUMBER]):
        value |= (byte & 0x7F) << (7 * count)
        if not byte & 0x80:
            return value, at + count + 1
    return value, at + MAX_NUMBER
