"""Memory of processes that are not there: pieces of bytes at addresses."""

from __future__ import annotations

from collections.abc import Mapping


class Pieces:
    """Pieces by address. What is read ends where a piece does."""

    def __init__(self, pieces: Mapping[int, bytes | bytearray]) -> None:
        self.pieces = dict(pieces)

    def read(self, address: int, size: int) -> bytes:
        for start, piece in self.pieces.items():
            if start <= address < start + len(piece):
                return bytes(piece[address - start : address - start + size])
        return b""
