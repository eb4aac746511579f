"""What an analysis is told not to take for granted, though code and data suggest it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sframegen.code.decoding.instruction_columns import DIRECT
from sframegen.code.isa.effects import Flow

if TYPE_CHECKING:
    from collections.abc import Callable

    from sframegen.code.decoding.pieces import Piece


class Assumptions(NamedTuple):
    """What is asked before it is believed."""

    enters: Callable[[int], bool]  #: whether a function may begin at an address
    continues: Callable[[int, int], bool]
    #: whether control gets from a call to behind it, from a jump to what its table holds, or past its table, into another piece


def unguard(piece: Piece, continues: Callable[[int, int], bool]) -> None:
    """Takes out the branches before jumps by tables that do not lead where their targets are: `__builtin_unreachable()`.

    Compilers keep the comparison of the index, and let it branch to what happens to stand next.
    """
    for number in piece.numbers_of(Flow.INDIRECT):
        before = number - 1
        while before >= 0 and piece.flows[before] == Flow.NEXT:
            before -= 1
        if before >= 0 and piece.flows[before] == Flow.BRANCH | 1 << DIRECT:
            point = piece.point(before)
            if point.target is not None and not continues(point.address, point.target):
                piece.flows[before] = Flow.NEXT
