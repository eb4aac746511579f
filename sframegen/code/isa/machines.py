"""The machines whose code is read: a row for each ABI."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cfi.errors import FormatError
from sframegen.code.isa import aarch64, s390x, x86_64
from sframegen.format.abi import AARCH64, AARCH64_BE, AMD64, S390X

if TYPE_CHECKING:
    from sframegen.code.isa.instruction_set import Isa
    from sframegen.code.isa.plt_stubs import Stubs
    from sframegen.format.abi import Abi


class Machine(NamedTuple):
    """What is known of the code of one ABI."""

    plt: Stubs
    relative: int  #: the type of the relocation that adds the base to an address
    irelative: int  #: of the one that calls the function at that address, and stores its result
    isa: Isa | None = None  #: None: the instructions are not read


MACHINES = {
    AMD64.name: Machine(x86_64.PLT, x86_64.RELATIVE, x86_64.IRELATIVE, x86_64.ISA),
    AARCH64.name: Machine(aarch64.PLT, aarch64.RELATIVE, aarch64.IRELATIVE, aarch64.ISA),
    AARCH64_BE.name: Machine(aarch64.PLT, aarch64.RELATIVE, aarch64.IRELATIVE),
    S390X.name: Machine(s390x.PLT, s390x.RELATIVE, s390x.IRELATIVE),
}


def machine_of(abi: Abi) -> Machine:
    return MACHINES[abi.name]


def isa_of(abi: Abi) -> Isa:
    """Raises FormatError for an ABI whose instructions are not read."""
    isa = MACHINES[abi.name].isa
    if isa is None:
        known = " and ".join(name for name, machine in MACHINES.items() if machine.isa)
        raise FormatError(f"instructions of {abi.name} are not read, only those of {known}")
    return isa
