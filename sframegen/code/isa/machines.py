"""The machines whose code is read, each in a module of its own."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from sframegen.base.errors import FormatError
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.elf.records import MACHINE_NAMES
from sframegen.format.abi import ABIS

if TYPE_CHECKING:
    from sframegen.code.isa.instruction_set import Isa, Stubs
    from sframegen.elf.records import ByteOrder
    from sframegen.format.abi import Abi


class CodeMachine(NamedTuple):
    """The facts about the code of one ABI."""

    plt: Stubs
    irelative: int  #: the type of the relocation that calls the function at an address, and stores its result
    isa: Isa | None = None  #: None: the instructions are not read


def machine_of(abi: Abi) -> CodeMachine:
    return _machine(abi.machine, abi.byte_order)


@cache
def _machine(machine: int, byte_order: ByteOrder) -> CodeMachine:
    """Return a machine. Its module is imported on first use: its regular expressions take 40 ms to compile."""
    module = import_module(f"sframegen.code.isa.{MACHINE_NAMES[machine]}")
    isa = (
        getattr(module, "ISA", None) if byte_order == "little" else None
    )  # jump tables and literals are decoded as little-endian only
    return CodeMachine(module.PLT, module.IRELATIVE, isa)


def isa_of(abi: Abi) -> Isa:
    """Return the instruction set of an ABI. Raises FormatError if its instructions are not supported."""
    isa = machine_of(abi).isa
    if isa is None:
        known = " and ".join(one.name for one in ABIS if machine_of(one).isa)
        raise FormatError(f"instructions of {abi.name} are not read, only those of {known}")
    return isa
