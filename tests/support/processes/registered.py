"""Small sections to register."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.format.abi import AMD64
from sframegen.format.encode import Encoder
from sframegen.format.model import FunctionTable, Kind, Rule, Where

if TYPE_CHECKING:
    from array import array

    from sframegen.format.abi import Abi

RULE = Rule(Where(AMD64.sp, 16), Where(None, -8, deref=True))


def column(of: array[int], *values: int) -> array[int]:
    of.extend(values)
    return of


def section_bytes(address: int, starts: tuple[int, ...], abi: Abi = AMD64) -> bytes:
    """A section with functions of 16 bytes, each with one rule."""
    table = FunctionTable(kinds=[Kind()], rules=[RULE if abi is AMD64 else Rule(Where(abi.sp, 160))])
    column(table.start, *starts)
    column(table.size, *[16] * len(starts))
    column(table.kind, *[0] * len(starts))
    column(table.first_row, *range(1, len(starts) + 1))
    column(table.row_start, *[0] * len(starts))
    column(table.row_rule, *[0] * len(starts))
    return bytes(Encoder(table, abi).encode(address))
