"""Flat columns: their types, as the compiled modules' signatures name them for readers and for mypy, and new ones."""

from __future__ import annotations

from array import array
from typing import TypeAlias

Column: TypeAlias = "array[int] | memoryview"
Bytes: TypeAlias = bytes | bytearray | memoryview


def zeros(code: str, count: int) -> array[int]:
    """A column of `count` zeros; `code` as array's."""
    return array(code, [0]) * count
