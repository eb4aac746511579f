"""System calls that come back twice, once on another stack: clone, where a function makes it by itself."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from sframegen.format.abi import AARCH64, AMD64

if TYPE_CHECKING:
    from sframegen.code.decoding.pieces import Piece
    from sframegen.format.abi import Abi


class Call(NamedTuple):
    code: bytes  #: of the instruction that makes a system call
    number: re.Pattern[str]  #: one that chooses clone or clone3


CALLS = {
    AMD64.name: Call(b"\x0f\x05", re.compile(r"(?:mov|movabs) [er]ax, 0x(?:38|1b3)$")),
    AARCH64.name: Call(b"\x01\0\0\xd4", re.compile(r"(?:mov|movz) [xw]8, #0x(?:dc|1b3)$")),
}


def clones(piece: Piece, abi: Abi) -> bool:
    """Whether it seems to make that call: SP behind it is not known, then."""
    call = CALLS[abi.name]
    return call.code in piece.code and any(
        call.number.match(f"{mnemonic} {operands}") for _, _, mnemonic, operands in map(piece.instruction, range(len(piece)))
    )
