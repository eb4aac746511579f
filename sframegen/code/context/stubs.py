"""The stubs by which functions of other files are called: which pointer each jumps by."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sframegen.code.isa.effects import Flow

if TYPE_CHECKING:
    from sframegen.code.decoding.pieces import Piece

ADRP = re.compile(r"(x\d+), #(0x[0-9a-f]+|\d+)$")
LOAD = re.compile(r"(x\d+), \[(x\d+)(?:, #(0x[0-9a-f]+|\d+))?\]$")
LONGEST = 32  # bytes of a stub's part up to the jump


def slot_of(piece: Piece) -> int | None:
    """The address of the pointer that the code, a stub's first bytes, jumps by."""
    pages: dict[str, int] = {}
    slots: dict[str, int] = {}
    jump = next(piece.flow_points(), None)
    if jump is None or jump.flow is not Flow.INDIRECT:
        return None
    if jump.slot is not None:
        return jump.slot
    for address, _, mnemonic, operands in map(piece.instruction, range(len(piece))):
        if mnemonic == "adrp" and (match := ADRP.match(operands)):
            pages[match[1]] = int(match[2], 0)
        elif mnemonic == "ldr" and (match := LOAD.match(operands)) and match[2] in pages:
            slots[match[1]] = pages[match[2]] + int(match[3] or "0", 0)
        elif address == jump.address:
            return slots.get(operands)
    return None
