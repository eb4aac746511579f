"""The types of flat columns, as the compiled modules' signatures name them for readers and for mypy."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from array import array

Column: TypeAlias = "array[int] | memoryview"
Bytes: TypeAlias = bytes | bytearray | memoryview
