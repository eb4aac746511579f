"""The machines whose code is read: a row for each ABI."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from sframegen.base.errors import FormatError
from sframegen.format.abi import AARCH64, AARCH64_BE, AMD64, S390X

if TYPE_CHECKING:
    from sframegen.code.isa.instruction_set import Isa, Stubs
    from sframegen.format.abi import Abi


class CodeMachine(NamedTuple):
    """What is known of the code of one ABI."""

    plt: Stubs
    irelative: int  #: the type of the relocation that calls the function at an address, and stores its result
    isa: Isa | None = None  #: None: the instructions are not read


# ABI -> the module that has its row, and whether its instructions are read. Modules are imported when they are first used:
# to compile their regular expressions takes 40 ms.
MACHINES = {
    AMD64.name: ("x86_64", True),
    AARCH64.name: ("aarch64", True),
    AARCH64_BE.name: ("aarch64", False),
    S390X.name: ("s390x", False),
}


def machine_of(abi: Abi) -> CodeMachine:
    return _machine(*MACHINES[abi.name])


@cache
def _machine(name: str, read: bool) -> CodeMachine:
    module = import_module(f"sframegen.code.isa.{name}")
    return CodeMachine(module.PLT, module.IRELATIVE, module.ISA if read else None)


def isa_of(abi: Abi) -> Isa:
    """Raises FormatError for an ABI whose instructions are not read."""
    isa = machine_of(abi).isa
    if isa is None:
        known = " and ".join(name for name, (_, read) in MACHINES.items() if read)
        raise FormatError(f"instructions of {abi.name} are not read, only those of {known}")
    return isa
