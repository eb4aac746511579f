"""Recognises compressed streams by their first bytes, unpacks them within memory limits, and packs them again the same way."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import zlib
from contextlib import nullcontext
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol, cast

from sframegen.base.errors import FormatError
from sframegen.elf.compressed import MAX_WINDOW_LOG, import_zstd

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from sframegen.packages.package_pass import Readable

CHUNK = 1 << 18
MAGIC_SIZE = 64  # bytes at a stream's start that determine its kind and level
MAX_XZ_MEMORY = 256 << 20  # bytes; presets of xz need at most 65 MiB
DEFAULT_XZ_PRESET = 6
# The headers of an xz stream and of its first block, if LZMA2 is the block's only filter; the group is its dictionary size. A block
# header has its own size, flags, and a variable-length number (N) for each size that the flags announce.
XZ_DICTIONARY = re.compile(rb".{12}[^\0](?:\0|[\x40\x80]N|\xc0NN)!\x01(.)".replace(b"N", rb"[\x80-\xff]{0,8}[\0-\x7f]"), re.DOTALL)
# Dictionary size -> the xz preset that uses it. Presets 3 and 4, and 5 and 6, share a size.
XZ_PRESETS = {1 << 18: 0, 1 << 20: 1, 1 << 21: 2, 1 << 22: 4, 1 << 23: 6, 1 << 24: 7, 1 << 25: 8, 1 << 26: 9}
# Starting a stream takes as long as decompressing some 100 kB, but no tool writes many streams with fewer bytes than this in each.
MIN_MEAN_STREAM_BYTES, MAX_SMALL_STREAMS = 4096, 1000
GZIP_LEVELS = {2: 9, 4: 1}  # gzip's "extra flags" byte -> level
# Base-2 logarithm of the window size -> the zstd level that uses it. If several levels do, it is the usual one of tools.
ZSTD_LEVELS, DEFAULT_ZSTD_LEVEL = {19: 1, 20: 2, 21: 3, 22: 9, 23: 19, 25: 20, 26: 21, 27: 22}, 3
DEFAULT_ZSTD_WINDOW, MAX_FRAME_HEADER = 21, 18  # of level 3; in bytes, with the magic
# Flags of a zstd frame header: it has the size of the contents in place of a window size; a checksum follows the frame.
SINGLE_SEGMENT, CONTENT_CHECKSUM = 0x20, 0x04


class Compression(NamedTuple):
    """A stream's compression: kind and settings."""

    name: str  #: "gz", "xz", "bz2", "zst"
    level: int
    check: int = -1  #: in xz, the kind of checksum; in zstd, 1 if checksums follow the frames, else 0
    mtime: int = 0  #: in gzip, the time in the header


def detect_compression(beginning: bytes) -> Compression | None:
    """Return the compression of a stream with this beginning; None if it is not compressed, or if the format is unknown."""
    if beginning.startswith(b"\x1f\x8b\x08"):
        level = GZIP_LEVELS.get(beginning[8], 6) if len(beginning) > 8 else 6
        return Compression("gz", level, mtime=int.from_bytes(beginning[4:8], "little"))
    if beginning.startswith(b"\xfd7zXZ\0"):
        check = beginning[7] & 15 if len(beginning) > 7 else lzma.CHECK_CRC64
        return Compression("xz", _guess_xz_preset(beginning), check=check)
    if beginning.startswith(b"BZh") and beginning[3:4].isdigit():
        return Compression("bz2", max(1, int(beginning[3:4])))
    if beginning.startswith(b"\x28\xb5\x2f\xfd"):
        has_checksums = len(beginning) > 4 and beginning[4] & CONTENT_CHECKSUM > 0
        return Compression("zst", _guess_zstd_level(beginning), check=int(has_checksums))
    return None


def detect_compression_at(source: BinaryIO) -> Compression | None:
    """Return the compression of the stream at a file's current position. The position stays the same."""
    start = source.tell()
    compression = detect_compression(source.read(MAGIC_SIZE))
    source.seek(start)
    return compression


def open_decompressed(source: Readable, compression: Compression | None) -> BinaryIO:
    """Return a file with the decompressed stream. Reading it raises FormatError if the stream is damaged."""
    if compression is None:
        return cast("BinaryIO", source)
    return cast("BinaryIO", io.BufferedReader(_DecompressedStream(source, _choose_unpacking(compression.name)), CHUNK))


def open_compressor(target: BinaryIO, compression: Compression | None) -> AbstractContextManager[BinaryIO]:
    """Return a file that compresses to `target`, which is complete at the end of the block. Equal input gives equal output."""
    if compression is None:
        return nullcontext(target)
    level = compression.level
    if compression.name == "gz":
        return cast("BinaryIO", gzip.GzipFile("", "wb", level, target, mtime=compression.mtime))
    if compression.name == "xz":
        check = compression.check if lzma.is_check_supported(compression.check) else lzma.CHECK_CRC64
        return cast("BinaryIO", lzma.LZMAFile(target, "wb", check=check, preset=level))
    if compression.name == "bz2":
        return cast("BinaryIO", bz2.BZ2File(target, "wb", compresslevel=level))
    zstd = import_zstd()
    parameters = zstd.CompressionParameter
    options = {int(parameters.compression_level): level, int(parameters.checksum_flag): compression.check}
    return cast("BinaryIO", zstd.ZstdFile(target, "wb", options=options))


class _Decompressor(Protocol):
    """The common interface of the decompressors of bz2, lzma and zstd."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Unpacking(NamedTuple):
    """How to unpack a compression format."""

    make_decompressor: Callable[[], _Decompressor]
    errors: tuple[type[Exception], ...]  # raised for damaged data
    padding: bytes = b""  # bytes that may follow a stream


class _Gzip:
    """A zlib decompressor with the interface of the others."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._zlib.unconsumed_tail

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._zlib.decompress(self._zlib.unconsumed_tail + data, max_length)


def _choose_unpacking(name: str) -> _Unpacking:
    match name:
        case "gz":
            return _Unpacking(_Gzip, (zlib.error,), b"\0")
        case "xz":
            return _Unpacking(lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_XZ_MEMORY), (lzma.LZMAError,), b"\0")
        case "bz2":
            return _Unpacking(bz2.BZ2Decompressor, (OSError, ValueError))
    zstd = import_zstd()
    options = {int(zstd.DecompressionParameter.window_log_max): MAX_WINDOW_LOG}
    return _Unpacking(lambda: cast("_Decompressor", zstd.ZstdDecompressor(options=options)), (zstd.ZstdError,))


class _DecompressedStream(io.RawIOBase):
    """A reader of decompressed bytes, which joins consecutive streams, like the tools for all of these formats."""

    def __init__(self, source: Readable, unpacking: _Unpacking) -> None:
        super().__init__()
        self._source, self._unpacking = source, unpacking
        self._stream: _Decompressor | None = None  # None between streams
        self._input = b""  # read from the source, but not decompressed yet
        self._streams = self._output_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object, /) -> int:
        view = memoryview(cast("bytearray", buffer)).cast("B")
        data = self._read_some(len(view))
        view[: len(data)] = data
        self._output_bytes += len(data)
        return len(data)

    def _read_some(self, size: int) -> bytes:
        """Return up to `size` decompressed bytes, and none only at the end of the data. Raises FormatError."""
        result = b""
        while not result and (stream := self._stream or self._begin_stream()):
            data, self._input = self._input, b""
            if not data and stream.needs_input:
                data = self._source.read(CHUNK)
                if not data:
                    raise FormatError("its compressed data is cut off")
            try:
                result = stream.decompress(data, size)
            except self._unpacking.errors as error:
                raise FormatError(f"its compressed data is damaged: {error}") from None
            if stream.eof:
                self._input, self._stream = stream.unused_data, None
        return result

    def _begin_stream(self) -> _Decompressor | None:
        """Return the decompressor of the next stream; None at the end of the data."""
        while True:
            if self._streams and self._unpacking.padding:
                self._input = self._input.lstrip(self._unpacking.padding)
            if self._input:
                break
            self._input = self._source.read(CHUNK)
            if not self._input:
                return None
        self._streams += 1
        if self._streams > MAX_SMALL_STREAMS + self._output_bytes // MIN_MEAN_STREAM_BYTES:
            raise FormatError(f"its compressed data is in {self._streams:,} streams, which have {self._output_bytes:,} bytes")
        self._stream = self._unpacking.make_decompressor()
        return self._stream


def _guess_xz_preset(beginning: bytes) -> int:
    """Return the xz preset with the dictionary size of the first block, whose six bits encode 2^n or 3 * 2^n (xz format 5.3.1)."""
    match = XZ_DICTIONARY.match(beginning)
    bits = match[1][0] & 63 if match else 0
    mantissa, exponent = 2 | bits & 1, bits // 2 + 11
    return XZ_PRESETS.get(mantissa << exponent, DEFAULT_XZ_PRESET)


def _guess_zstd_level(beginning: bytes) -> int:
    """Return the zstd level that has the window size of the first frame. Flags and window follow 4 bytes of magic (RFC 8878).

    A single-segment frame has the size of its contents instead, which is then the smallest window.
    """
    if len(beginning) < MAX_FRAME_HEADER:
        return DEFAULT_ZSTD_LEVEL
    flags = beginning[4]
    if not flags & SINGLE_SEGMENT:
        return ZSTD_LEVELS.get((beginning[5] >> 3) + 10, DEFAULT_ZSTD_LEVEL)
    offset = 5 + (0, 1, 2, 4)[flags & 3]  # the content size follows a dictionary's identifier; flags have the sizes of both
    size = int.from_bytes(beginning[offset : offset + (1, 2, 4, 8)[flags >> 6]], "little")
    smallest_window = max((size - 1).bit_length(), DEFAULT_ZSTD_WINDOW)
    return next((level for window, level in ZSTD_LEVELS.items() if window >= smallest_window), DEFAULT_ZSTD_LEVEL)
