"""How instructions are read: a row for each ABI."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cfi.errors import FormatError
from sframegen.code.isa import aarch64, x86_64
from sframegen.code.isa.frame_state import State
from sframegen.format.abi import AARCH64, AMD64

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sframegen.code.isa.disassembly import Instruction
    from sframegen.code.isa.effects import Effects, Point, Take
    from sframegen.format.abi import Abi


class Isa(NamedTuple):
    """What is known of an ABI's instructions, and what holds at a function's entry."""

    capstone: tuple[str, str]  #: architecture and mode, by the names of capstone's constants
    point: Callable[[int, int, str, str, int], Point | None]  #: (address, end, mnemonic, operands, first byte)
    entry: State
    longest: int  #: bytes of an instruction
    pads: Callable[[str, str], bool]  #: (mnemonic, operands): whether it fills the space between functions
    matters: Callable[[str], bool]  #: (mnemonic): whether each is looked at
    needles: tuple[str, ...]  #: two letters each: operands that hold one are looked at
    takes: Mapping[str, Take]  #: by mnemonic
    prefix: int = -1  #: a first byte that changes what an instruction of the same text does
    by_register: Callable[[Sequence[Instruction], int], Effects | None] | None = None  #: see aarch64.py


ISAS = {
    AMD64.name: Isa(
        capstone=("CS_ARCH_X86", "CS_MODE_64"),
        point=x86_64.point,
        entry=State(sp=-8, ra=None, ra_at=-8),
        longest=15,
        pads=x86_64.pads,
        matters=x86_64.matters,
        needles=x86_64.NEEDLES,
        takes=x86_64.TAKES,
        prefix=x86_64.OPERAND_SIZE,
    ),
    AARCH64.name: Isa(
        capstone=("CS_ARCH_ARM64", "CS_MODE_ARM"),
        point=aarch64.point,
        entry=State(sp=0),
        longest=4,
        pads=aarch64.pads,
        matters=aarch64.matters,
        needles=aarch64.NEEDLES,
        takes=aarch64.TAKES,
        by_register=aarch64.by_register,
    ),
}


def isa_of(abi: Abi) -> Isa:
    """Raises FormatError for an ABI whose instructions are not read."""
    try:
        return ISAS[abi.name]
    except KeyError:
        raise FormatError(f"instructions of {abi.name} are not read, only those of {' and '.join(ISAS)}") from None
