"""Code that call frame information describes, by address: the pieces of FDEs, and what of them no function covers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sframegen.conversion.resolve import PieceColumns
from sframegen.conversion.split import UnsaidColumns
from sframegen.elf.columns import Spans

if TYPE_CHECKING:
    from sframegen.base.columns import Column


class Pieces(NamedTuple):
    """The code that FDEs describe, by address: columns of FDE numbers, start and end addresses."""

    fde: Column
    start: Column
    end: Column

    def columns(self) -> PieceColumns:
        return PieceColumns(*self)

    def spans(self) -> Spans:
        return Spans(self.start, self.end)


class Unsaid(NamedTuple):
    """The code of pieces that no function covers, by address: columns of starts, sizes and numbers of the Reason."""

    start: Column
    size: Column
    reason: Column

    def columns(self) -> UnsaidColumns:
        return UnsaidColumns(*self)
