"""What is done to an input to make another one."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from sframegen.elf.records import ByteOrder
from tests.fuzz.recipes import Edit, edited

MAX_SIZE = 1 << 16
MAX_BLOCK = 256
ORDERS: tuple[ByteOrder, ...] = ("little", "big")
WIDTHS = (1, 2, 4, 8)
EDGES = [0, *(1 << bits for bits in range(64))]
MORE_EDITS = 0.6  # the chance that there is another


def mutated(random: Random, data: bytes, other: bytes) -> list[Edit]:
    """Edits of `data`, one or more; blocks may come from the same place of `other`."""
    edits = [random.choice(EDITS)(random, data, other)]
    while random.random() < MORE_EDITS:
        data = edited(data, edits[-1:])
        edits.append(random.choice(EDITS)(random, data, other))
    return edits


def _place(random: Random, data: bytes) -> int:
    """Headers are at the front, and fields are aligned, more often than chance has it."""
    place = random.randrange(len(data) if random.random() < 0.7 else min(len(data), 128)) if data else 0
    return place & -random.choice(WIDTHS)


def _block(random: Random, data: bytes) -> bytes:
    place = _place(random, data)
    return data[place : place + random.randint(1, random.choice((8, 64, MAX_BLOCK)))]


def _flip(random: Random, data: bytes, _: bytes) -> Edit:
    place = _place(random, data)
    byte = data[place] if place < len(data) else 0
    return Edit(place, 1, bytes([byte ^ 1 << random.randrange(8)]))


def _byte(random: Random, data: bytes, _: bytes) -> Edit:
    return Edit(_place(random, data), 1, random.randbytes(1))


def _number(random: Random, data: bytes, _: bytes) -> Edit:
    """A number near an edge, or near the input's size or a place in it."""
    width = random.choice(WIDTHS)
    value = random.choice((random.choice(EDGES), len(data), random.randrange(len(data) + 1))) + random.randint(-2, 2)
    value *= random.choice((1, 1, 1, -1))
    return Edit(_place(random, data), width, (value % (1 << 8 * width)).to_bytes(width, random.choice(ORDERS)))


def _add(random: Random, data: bytes, _: bytes) -> Edit:
    width, place, order = random.choice(WIDTHS), _place(random, data), random.choice(ORDERS)
    value = int.from_bytes(data[place : place + width], order) + random.choice((-1, 1)) * random.choice((1, 2, 8, 16, 24, 64))
    return Edit(place, width, (value % (1 << 8 * width)).to_bytes(width, order))


def _copy(random: Random, data: bytes, _: bytes) -> Edit:
    block = _block(random, data)
    return Edit(_place(random, data), len(block), block)


def _insert(random: Random, data: bytes, _: bytes) -> Edit:
    return Edit(_place(random, data), 0, _block(random, data) if len(data) < MAX_SIZE else b"")


def _repeat(random: Random, data: bytes, _: bytes) -> Edit:
    block = _block(random, data) * random.choice((2, 3, 10, 40))
    return Edit(_place(random, data), 0, block if len(data) < MAX_SIZE else b"")


def _delete(random: Random, data: bytes, _: bytes) -> Edit:
    return Edit(_place(random, data), random.randint(1, random.choice((8, 64, MAX_BLOCK))), b"")


def _cut(random: Random, data: bytes, _: bytes) -> Edit:
    return Edit(_place(random, data), len(data), b"")


def _fill(random: Random, data: bytes, _: bytes) -> Edit:
    size = random.randint(1, 64)
    return Edit(_place(random, data), size, random.choice((b"\0", b"\xff", b"\x80", b"/")) * size)


def _splice(random: Random, data: bytes, other: bytes) -> Edit:
    place = _place(random, data)
    block = other[place : place + random.randint(1, MAX_BLOCK)]
    return Edit(place, len(block), block)


COMMON: list[Callable[[Random, bytes, bytes], Edit]] = [_flip, _byte, _number, _number, _add, _copy, _splice]
EDITS = [*COMMON, *COMMON, *COMMON, _insert, _repeat, _delete, _cut, _fill]
