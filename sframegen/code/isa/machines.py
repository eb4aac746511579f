"""Finds the description of a machine's code: PLT entries and instruction set. It is in the module with the machine's name."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from sframegen.base.errors import FormatError
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.elf.records import MACHINE_NAMES, ByteOrder
from sframegen.format.abi import ABIS, Abi

if TYPE_CHECKING:
    from sframegen.code.isa.instruction_set import Isa, Stubs


class CodeMachine(NamedTuple):
    """The description of an ABI's code."""

    plt: Stubs  #: the forms of PLT entries
    irelative: int  #: the type of the relocation that calls the function at an address, and stores its result
    isa: Isa | None = None  #: None: instructions are not decoded


def machine_of(abi: Abi) -> CodeMachine:
    return _machine(abi.machine, abi.byte_order)


@cache
def _machine(machine: int, byte_order: ByteOrder) -> CodeMachine:
    """Return a machine. Its module is imported on first use: its regular expressions take 40 ms to compile."""
    module = import_module(f"sframegen.code.isa.{MACHINE_NAMES[machine]}")
    has_isa = byte_order == "little"  # jump tables and literals are decoded as little-endian only
    return CodeMachine(module.PLT, module.IRELATIVE, getattr(module, "ISA", None) if has_isa else None)


def isa_of(abi: Abi) -> Isa:
    """Return the instruction set of an ABI. Raises FormatError if its instructions are not supported."""
    isa = machine_of(abi).isa
    if isa is None:
        known = " and ".join(one.name for one in ABIS if machine_of(one).isa)
        raise FormatError(f"instructions of {abi.name} are not read, only those of {known}")
    return isa
