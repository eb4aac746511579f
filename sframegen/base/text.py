"""Formats names and numbers for printing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_TEXT, SHOWN = 1000, 400  # characters: the longest line, and how much of either end remains of a longer one


def printable(text: str) -> str:
    """Return `text` as one line, with control characters escaped."""
    return text if text.isprintable() else "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shortened(text: str) -> str:
    """Return `text` without its middle if it is long: paths and C++ names can have thousands of characters."""
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:SHOWN]}... [{len(text) - 2 * SHOWN:,} characters] ...{text[-SHOWN:]}"


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun: `1 function`, `2,000 functions`."""
    return f"{number:,} {noun}" + "s" * (number != 1)


def first_of(names: Sequence[str], most: int = 3) -> str:
    """Return the first names as text, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def most_first(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return (name, count) pairs by count, the largest first; pairs of equal count by name."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
