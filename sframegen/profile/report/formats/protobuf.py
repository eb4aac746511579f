"""Protocol buffers, as far as pprof's schema needs them: messages of integers, texts and messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

VARINT, BYTES = 0, 2
UNSIGNED = 0xFFFFFFFFFFFFFFFF


def varint(number: int) -> bytes:
    """`number`: 64 bits; negative ones are their two's complement."""
    number &= UNSIGNED
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def integer(field: int, number: int) -> bytes:
    """Return a field; nothing for 0, which readers assume."""
    return varint(field << 3 | VARINT) + varint(number) if number else b""


def message(field: int, data: bytes) -> bytes:
    return varint(field << 3 | BYTES) + varint(len(data)) + data


def text_field(field: int, characters: str) -> bytes:
    return message(field, characters.encode(errors="replace"))


def packed_numbers(field: int, numbers: Iterable[int]) -> bytes:
    return message(field, b"".join(map(varint, numbers)))
