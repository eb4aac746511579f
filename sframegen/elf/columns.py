"""Tables of addresses as the compiled modules take them (docs/compiled.md). Compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from cfi import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from cfi.columns import Bytes, Column

COMPILED: bool = cython.compiled


class Spans:
    """Ranges of addresses, ascending and without overlaps."""

    def __init__(self, start: Column, end: Column) -> None:
        self.start = start
        self.end = end


class Areas:
    """Executable ranges of a file, ascending and without overlaps: the bytes of each are at data[offset].

    `fate`: what becomes of bytes that no CFI describes. `padding`: the states that padding leads through (padding.py).
    """

    def __init__(self, data: Bytes, padding: Column, start: Column, end: Column, offset: Column, fate: Bytes) -> None:
        self.data = data
        self.padding = padding
        self.start = start
        self.end = end
        self.offset = offset
        self.fate = fate
