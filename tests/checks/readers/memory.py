"""A section as its readers see it: bytes that end somewhere, and what comes of reading them."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from sframegen.format.layouts import HEADER_CODE, SframeHeader

CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}
V3_INDEX, V2_INDEX, V1_INDEX = 16, 20, 17
INDEX = {1: V1_INDEX, 2: V2_INDEX, 3: V3_INDEX}
ATTRIBUTE = 5  # bytes before the FREs of version 3


class OutOfBoundsError(Exception):
    """The reader read what is not the section's."""


class Memory:
    """Bytes in one byte order; numbers are unsigned unless `signed`."""

    def __init__(self, data: bytes, order: str) -> None:
        self.data = data
        self.mark = {"little": "<", "big": ">"}[order]

    def read(self, at: int, width: int, *, signed: bool = False) -> int:
        if at < 0 or at + width > len(self.data):
            raise OutOfBoundsError(at)
        code = CODES[width].lower() if signed else CODES[width]
        number: int = struct.unpack_from(self.mark + code, self.data, at)[0]
        return number


def header_of(memory: Memory) -> SframeHeader:
    if len(memory.data) < 28:
        raise OutOfBoundsError(len(memory.data))
    return SframeHeader(*struct.unpack_from(memory.mark + HEADER_CODE, memory.data))


def claims(memory: Memory, address: int) -> Iterator[int]:
    """Addresses that the section's functions claim: their ends, and where their rows begin or end, as far as can be read."""
    header = header_of(memory)
    body = 28 + header.auxhdr_len
    width = INDEX.get(header.version, V3_INDEX)
    long = 8 if header.version == 3 else 4
    for number in range(header.num_fdes):
        entry = body + header.fdeoff + number * width
        try:
            start = memory.read(entry, long, signed=True) + address + (entry if header.flags & 4 else 0)
            size = memory.read(entry + long, 4)
        except OutOfBoundsError:
            return
        if not size:
            continue
        start &= (1 << 64) - 1
        yield from {start, start + size - 1}
        try:
            yield from _rows(memory, header, entry, start, size)
        except OutOfBoundsError:
            continue


def _rows(memory: Memory, header: SframeHeader, entry: int, start: int, size: int) -> Iterator[int]:
    block = 28 + header.auxhdr_len + header.freoff + memory.read(entry + (12 if header.version == 3 else 8), 4)
    if header.version == 3:
        count, info, period = memory.read(block, 2), memory.read(block + 2, 1), memory.read(block + 4, 1)
        block += ATTRIBUTE
    else:
        count, info = memory.read(entry + 12, 4), memory.read(entry + 16, 1)
        period = memory.read(entry + 17, 1) if header.version == 2 else 0
    bases = (0, period) if info & 0x10 else (0,)
    for _ in range(count):
        wide = 1 << min(info & 0x0F, 2)
        row, words = memory.read(block, wide), memory.read(block + wide, 1)
        yield from (start + at for base in bases for at in (base + row - 1, base + row) if 0 <= at < size)
        block += wide + 1 + ((words >> 1 & 0x0F) << (words >> 5 & 3))
