"""Strings of a table: complete, however long, because linkers' maps have complete section names."""

from __future__ import annotations

from functools import lru_cache

from cfi.errors import FormatError

# Their total length is limited: entries that share one endless string would cost the square of its length. Strings that share an
# end, as .rela.text.f and .text.f do, have twice as many bytes as their table.
MAX_PER_BYTE, MIN_LIMIT = 4, 1 << 16
CACHED = 1024  # bytes of a table: objects that one compiler made often have the same


def strings_at(table: bytes, places: tuple[int, ...]) -> list[str]:
    """Return the string at each place. Raises FormatError if they have far more bytes than the table."""
    return (_strings if len(table) <= CACHED else _strings.__wrapped__)(table, places)


@lru_cache(64)
def _strings(table: bytes, places: tuple[int, ...]) -> list[str]:
    left = max(MAX_PER_BYTE * len(table), MIN_LIMIT)
    strings = {}
    for at in set(places):
        end = table.find(b"\0", at)
        end = end if end >= 0 else len(table)
        left -= end - at
        if left < 0:
            raise FormatError(f"{len(set(places))} names share {len(table)} bytes")
        strings[at] = table[at:end].decode(errors="replace")
    return [strings[at] for at in places]
