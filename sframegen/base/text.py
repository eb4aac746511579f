"""Names and numbers as they are printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_TEXT, SHOWN = 1000, 400  # characters of a line, and of either end where it is longer


def printable(text: str) -> str:
    """`text` in one line, whatever it holds."""
    return text if text.isprintable() else "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shortened(text: str) -> str:
    """`text` without its middle if it is long: paths and names of C++ can have thousands of characters."""
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:SHOWN]}... [{len(text) - 2 * SHOWN:,} characters] ...{text[-SHOWN:]}"


def count_of(number: int, noun: str) -> str:
    """`1 function`, `2,000 functions`."""
    return f"{number:,} {noun}" + "s" * (number != 1)


def first_of(names: Sequence[str], most: int = 3) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def most_first(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """(name, count) by count, the largest first; by name where counts are equal."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
