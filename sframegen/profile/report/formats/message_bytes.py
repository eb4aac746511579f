"""Protocol buffers, as far as pprof's schema needs them: messages of integers, texts and messages. Compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from collections.abc import Iterable

COMPILED: bool = cython.compiled
VARINT, BYTES = 0, 2
UNSIGNED = 0xFFFFFFFFFFFFFFFF
ONE_BYTE = [bytes([number]) for number in range(0x80)]
SHORT = ONE_BYTE + [bytes([number & 0x7F | 0x80, number >> 7]) for number in range(0x80, 1 << 14)]


def varint(number: int) -> bytes:
    """`number`: 64 bits; negative ones are their two's complement."""
    if 0 <= number < len(SHORT):
        return SHORT[number]
    number &= UNSIGNED
    out: list[int] = []  # no bytearray: Cython's append leaves out what it needs where there is no global lock
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
