"""The form of a PLT entry: a pattern of bytes with its rows. The machines' tables of entries consist of these."""

from __future__ import annotations

import re
from typing import NamedTuple


class Stub(NamedTuple):
    """Code of `size` bytes; its rows (offset, n): CFA = SP + n. Without rows, no rule can describe it.

    If it `repeats`, all that follow one another are one function.
    """

    code: re.Pattern[bytes]
    size: int
    rows: tuple[tuple[int, int], ...]
    repeats: bool = True


class Stubs(NamedTuple):
    """`first`: those that a section can only begin with. `others` follow in any order, the first that matches counts."""

    first: tuple[Stub, ...]
    others: tuple[Stub, ...]


def stub(code: str, *rows: tuple[int, int], repeats: bool = True) -> Stub:
    """`code`: hexadecimal bytes, `..` any byte, `a&m` those bytes that are `a` under the mask `m`."""
    words = code.split()
    return Stub(re.compile(b"".join(map(_pattern, words)), re.DOTALL), len(words), rows, repeats)


def _pattern(word: str) -> bytes:
    if word == "..":
        return b"."
    value, _, mask = word.partition("&")
    if not mask:
        return re.escape(bytes.fromhex(value))
    fits = [byte for byte in range(256) if byte & int(mask, 16) == int(value, 16)]
    return b"[" + b"".join(re.escape(bytes([byte])) for byte in fits) + b"]"
