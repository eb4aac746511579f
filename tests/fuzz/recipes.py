"""An input as text: the name of its seed, then an edit a line, `OFFSET REMOVED HEX`, each of what the one before made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Edit(NamedTuple):
    """`removed` bytes at `offset` give way to `data`; both are cut where the input ends."""

    offset: int
    removed: int
    data: bytes

    def __str__(self) -> str:
        return f"{self.offset} {self.removed} {self.data.hex() or '-'}"


class Recipe(NamedTuple):
    seed: str
    edits: tuple[Edit, ...] = ()

    def __str__(self) -> str:
        return "\n".join([f"seed {self.seed}", *map(str, self.edits)])


def parse(text: str) -> Recipe:
    first, *lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    edits = (Edit(int(at), int(removed), bytes.fromhex(data.strip("-"))) for at, removed, data in map(str.split, lines))
    return Recipe(first.removeprefix("seed "), tuple(edits))


def edited(data: bytes, edits: Iterable[Edit]) -> bytes:
    out = bytearray(data)
    for offset, removed, new in edits:
        out[offset : offset + removed] = new
    return bytes(out)
