"""What an analysis asks before it trusts code and data: where functions begin, and where control goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sframegen.code.decoding.instruction_columns import DIRECT
from sframegen.code.isa.effects import Flow

if TYPE_CHECKING:
    from collections.abc import Callable

    from sframegen.code.decoding.pieces import Piece


class Assumptions(NamedTuple):
    """The two questions."""

    enters: Callable[[int], bool]  #: true if a function may begin at an address
    continues: Callable[[int, int], bool]
    #: true if control may get from a call to the code after it, or from a jump to a target, in its table or in another piece


def unguard(piece: Piece, continues: Callable[[int, int], bool]) -> None:
    """Remove the branches before table jumps whose targets control cannot reach: `__builtin_unreachable()`.

    Compilers keep the comparison of the index, and let it branch to whatever code is next.
    """
    for number in piece.numbers_of(Flow.INDIRECT):
        before = number - 1
        while before >= 0 and piece.flows[before] == Flow.NEXT:
            before -= 1
        if before >= 0 and piece.flows[before] == Flow.BRANCH | 1 << DIRECT:
            point = piece.point(before)
            if point.target is not None and not continues(point.address, point.target):
                piece.flows[before] = Flow.NEXT
