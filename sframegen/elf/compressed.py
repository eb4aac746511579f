"""Decompresses sections, within limits on memory and time even for hostile input."""

from __future__ import annotations

import sys
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

ELFCOMPRESS_ZLIB, ELFCOMPRESS_ZSTD = 1, 2

# Call frame information shrinks to a quarter, or to a tenth if all functions are alike; zeros would shrink to a thousandth.
MAX_DEFLATE_RATIO = 64
MAX_INFLATED = 1 << 30  # bytes; real sections of call frame information have tens of megabytes
# mold compresses each megabyte as a zstd frame. Each frame takes time, even an empty one.
FRAME_BYTES, FEW_FRAMES = 1 << 16, 16
MAX_WINDOW_LOG = 27  # base-2 logarithm of zstd's window: default settings need at most 128 MiB
GET_ZSTD = "install backports.zstd (see sframegen doctor)"


def expand(kind: int, raw: memoryview, size: int) -> memoryview:
    """Decompress `raw` to `size` bytes. Raises ValueError with the reason if that fails."""
    if kind not in (ELFCOMPRESS_ZLIB, ELFCOMPRESS_ZSTD):
        raise ValueError(f"compression type {kind} is not read; use objcopy --decompress-debug-sections")
    if size > min(len(raw) * MAX_DEFLATE_RATIO, MAX_INFLATED):
        raise ValueError(f"{len(raw)} compressed bytes cannot hold {size}")
    data = _inflate(raw, size) if kind == ELFCOMPRESS_ZLIB else _expand_zstd(raw, size)
    if len(data) != size:
        raise ValueError(f"decompressed to {len(data)} bytes, expected {size}")
    return memoryview(data)


def _inflate(raw: memoryview, size: int) -> bytes:
    try:
        return zlib.decompressobj().decompress(raw, size) if size else b""
    except zlib.error as error:
        raise ValueError(f"cannot be decompressed: {error}") from error


def _expand_zstd(raw: memoryview, size: int) -> bytes:
    """Decompress one zstd frame after the other."""
    try:
        zstd = zstd_library()
    except ImportError:
        raise ValueError(
            f"compressed with zstd, for which a library is missing: {GET_ZSTD}; objcopy --decompress-debug-sections does without"
        ) from None
    options = {int(zstd.DecompressionParameter.window_log_max): MAX_WINDOW_LOG}
    parts: list[bytes] = []
    left, at = size, 0
    try:
        while left and at < len(raw):
            end = at + zstd.get_frame_size(raw[at:])
            part = zstd.ZstdDecompressor(options=options).decompress(raw[at:end], left)
            parts.append(part)
            left, at = left - len(part), end
            if len(parts) > FEW_FRAMES + size // FRAME_BYTES:
                raise ValueError(f"{len(parts)} frames of zstd are too many for {size} bytes")
    except zstd.ZstdError as error:
        raise ValueError(f"cannot be decompressed: {error}") from error
    return b"".join(parts)


def zstd_library() -> ModuleType:
    """Import and return the zstd library. Raises ImportError."""
    if sys.version_info >= (3, 14):
        from compression import zstd  # noqa: PLC0415 - only where a section needs it
    else:
        from backports import zstd  # noqa: PLC0415
    return zstd
