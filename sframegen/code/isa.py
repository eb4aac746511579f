"""How instructions are read: a row for each ABI."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cfi.errors import FormatError
from sframegen.abi import AARCH64, AMD64
from sframegen.code import aarch64, x86_64
from sframegen.code.state import State

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sframegen.abi import Abi
    from sframegen.code.effects import Effects, Point


class Isa(NamedTuple):
    """What is known of an ABI's instructions, and what holds at a function's entry."""

    capstone: tuple[str, str]  #: architecture and mode, by the names of capstone's constants
    point: Callable[[int, int, str, str, int], Point | None]  #: (address, end, mnemonic, operands, first byte)
    entry: State
    longest: int  #: bytes of an instruction
    pads: Callable[[str, str], bool]  #: (mnemonic, operands): whether it fills the space between functions
    by_register: Callable[[Sequence[tuple[int, int, str, str]], int], Effects | None]  #: see aarch64.py


ISAS = {
    AMD64.name: Isa(
        capstone=("CS_ARCH_X86", "CS_MODE_64"),
        point=x86_64.point,
        entry=State(sp=-8, ra=None, ra_at=-8),
        longest=15,
        pads=lambda mnemonic, operands: mnemonic in ("nop", "int3") or (mnemonic == "xchg" and operands == "ax, ax"),
        by_register=lambda _instructions, _number: None,
    ),
    AARCH64.name: Isa(
        capstone=("CS_ARCH_ARM64", "CS_MODE_ARM"),
        point=aarch64.point,
        entry=State(sp=0),
        longest=4,
        pads=lambda mnemonic, _operands: mnemonic in ("nop", "udf"),
        by_register=aarch64.by_register,
    ),
}


def isa_of(abi: Abi) -> Isa:
    """Raises FormatError for an ABI whose instructions are not read."""
    try:
        return ISAS[abi.name]
    except KeyError:
        raise FormatError(f"instructions of {abi.name} are not read, only those of {' and '.join(ISAS)}") from None
