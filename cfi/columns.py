"""The types of flat columns, as the compiled modules' signatures name them for readers and for mypy."""

from __future__ import annotations

from array import array
from typing import TypeAlias

Column: TypeAlias = "array[int] | memoryview"
Bytes: TypeAlias = bytes | bytearray | memoryview
