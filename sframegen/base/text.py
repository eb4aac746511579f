"""Formats names and numbers for printing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_LINE, KEPT_END = 1000, 400  # characters: the longest text that is not cut, and how much remains at either end of a longer one


def printable(text: str) -> str:
    """Return `text` as one line, with control characters escaped."""
    return text if text.isprintable() else "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def cut_middle(text: str) -> str:
    """Return `text` without its middle if it is long, because paths and C++ names can have thousands of characters."""
    if len(text) <= MAX_LINE:
        return text
    return f"{text[:KEPT_END]}... [{len(text) - 2 * KEPT_END:,} characters] ...{text[-KEPT_END:]}"


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural if necessary: `1 function`, `2,000 functions`."""
    return f"{number:,} {noun}" + "s" * (number != 1)


def format_first(names: Sequence[str], most: int = 3) -> str:
    """Return the first names, and how many more there are: `a, b, c and 2 more`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def sort_by_count(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return (name, count) pairs, the largest count first; pairs with equal counts are sorted by name."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
