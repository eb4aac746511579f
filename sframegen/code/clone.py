"""System calls that come back twice, once on another stack: clone, where a function makes it by itself."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from sframegen.abi import AARCH64, AMD64

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sframegen.abi import Abi
    from sframegen.code.disassembly import Instruction


class Call(NamedTuple):
    mnemonic: str
    number: re.Pattern[str]  #: the instruction that chooses clone or clone3


CALLS = {
    AMD64.name: Call("syscall", re.compile(r"(?:mov|movabs) [er]ax, 0x(?:38|1b3)$")),
    AARCH64.name: Call("svc", re.compile(r"(?:mov|movz) [xw]8, #0x(?:dc|1b3)$")),
}


def clones(instructions: Iterable[Instruction], abi: Abi) -> bool:
    """Whether they seem to make that call: SP behind it is not known, then."""
    call = CALLS[abi.name]
    called = chosen = False
    for _, _, mnemonic, operands in instructions:
        called |= mnemonic == call.mnemonic
        chosen |= call.number.match(f"{mnemonic} {operands}") is not None
    return called and chosen
