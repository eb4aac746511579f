"""Flat columns: new ones, and tables of them as the compiled modules take them (docs/compiled.md). Compiled."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from cfi import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from typing import TypeAlias

    Column: TypeAlias = array[int] | memoryview
    Bytes: TypeAlias = bytes | bytearray | memoryview

COMPILED: bool = cython.compiled


def zeros(code: str, count: int) -> array[int]:
    """A column of `count` zeros; `code` as array's."""
    return array(code, [0]) * count


class Entries:
    """CIEs or FDEs, as offsets in their section: of the entry, of what follows its CIE pointer, of its end.

    `cie`: for an FDE, the offset of its CIE; empty for CIEs.
    """

    def __init__(self, start: Column, body: Column, end: Column, cie: Column) -> None:
        self.start = start
        self.body = body
        self.end = end
        self.cie = cie


class Fdes:
    """Address and bytes of the code that each FDE describes, and the number of its CIE."""

    def __init__(self, start: Column, size: Column, cie: Column) -> None:
        self.start = start
        self.size = size
        self.cie = cie


class Programs:
    """Offsets in the section: where each FDE's instructions begin and end."""

    def __init__(self, start: Column, end: Column) -> None:
        self.start = start
        self.end = end


class Rows:
    """The rows of FDEs, or of functions: those of i are first_row[i] .. first_row[i + 1] - 1.

    Of each row the offset from the start of the code, and the number of its rule.
    """

    def __init__(self, first_row: Column, start: Column, rule: Column) -> None:
        self.first_row = first_row
        self.start = start
        self.rule = rule
