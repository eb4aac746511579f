"""Decompresses sections (SHF_COMPRESSED) within limits on memory and time, which also hold for hostile input."""

from __future__ import annotations

import sys
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

ELFCOMPRESS_ZLIB, ELFCOMPRESS_ZSTD = 1, 2

# Call frame information shrinks to a quarter, or to a tenth if all functions are alike; zeros would shrink to a thousandth.
MAX_RATIO = 64
MAX_DECOMPRESSED = 1 << 30  # bytes; real sections of call frame information have tens of megabytes
# The limit on zstd frames, because even an empty frame takes time: one for each 64 KiB, and 16 more. mold writes one per megabyte.
MIN_FRAME_BYTES, EXTRA_FRAMES = 1 << 16, 16
MAX_WINDOW_LOG = 27  # base-2 logarithm of zstd's window size in bytes; default settings need at most 128 MiB
INSTALL_ZSTD_HINT = "install backports.zstd (see sframegen doctor)"


def decompress(kind: int, raw: memoryview, size: int) -> memoryview:
    """Decompress `raw` to `size` bytes. `kind`: ch_type. Raises ValueError with the reason if that fails."""
    if kind not in (ELFCOMPRESS_ZLIB, ELFCOMPRESS_ZSTD):
        raise ValueError(f"compression type {kind} is not read; use objcopy --decompress-debug-sections")
    if size > min(len(raw) * MAX_RATIO, MAX_DECOMPRESSED):
        raise ValueError(f"{len(raw)} compressed bytes cannot hold {size}")
    data = _decompress_zlib(raw, size) if kind == ELFCOMPRESS_ZLIB else _decompress_zstd(raw, size)
    if len(data) != size:
        raise ValueError(f"decompressed to {len(data)} bytes, expected {size}")
    return memoryview(data)


def _decompress_zlib(raw: memoryview, size: int) -> bytes:
    try:
        return zlib.decompressobj().decompress(raw, size) if size else b""
    except zlib.error as error:
        raise ValueError(f"cannot be decompressed: {error}") from error


def _decompress_zstd(raw: memoryview, size: int) -> bytes:
    """Decompress a sequence of zstd frames, one at a time, so that their number stays limited."""
    try:
        zstd = import_zstd()
    except ImportError:
        missing = f"compressed with zstd, for which a library is missing: {INSTALL_ZSTD_HINT}"
        raise ValueError(f"{missing}; objcopy --decompress-debug-sections does without") from None
    options = {int(zstd.DecompressionParameter.window_log_max): MAX_WINDOW_LOG}
    parts: list[bytes] = []
    missing_bytes, offset = size, 0
    try:
        while missing_bytes and offset < len(raw):
            end = offset + zstd.get_frame_size(raw[offset:])
            part = zstd.ZstdDecompressor(options=options).decompress(raw[offset:end], missing_bytes)
            parts.append(part)
            missing_bytes, offset = missing_bytes - len(part), end
            if len(parts) > EXTRA_FRAMES + size // MIN_FRAME_BYTES:
                raise ValueError(f"{len(parts)} frames of zstd are too many for {size} bytes")
    except zstd.ZstdError as error:
        raise ValueError(f"cannot be decompressed: {error}") from error
    return b"".join(parts)


def import_zstd() -> ModuleType:
    """Import and return the zstd library. Raises ImportError."""
    if sys.version_info >= (3, 14):
        from compression import zstd  # noqa: PLC0415 - few sections are compressed with zstd
    else:
        from backports import zstd  # noqa: PLC0415
    return zstd
