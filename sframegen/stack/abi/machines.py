"""The machines whose stacks are walked, a row for each ABI."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from sframegen.format.abi import AARCH64, AARCH64_BE, ABIS, AMD64, S390X
from sframegen.stack.abi import aarch64, s390x, x86_64
from sframegen.stack.walking.step import REGISTERS, WalkedMachine, caller_rule

if TYPE_CHECKING:
    from sframegen.format.abi import Abi
    from sframegen.stack.abi.conventions import Conventions, ReadCode

MACHINES = {
    AMD64.name: x86_64.CONVENTIONS,
    AARCH64.name: aarch64.CONVENTIONS,
    AARCH64_BE.name: aarch64.CONVENTIONS._replace(host=""),
    S390X.name: s390x.CONVENTIONS,
}
NOWHERE = -1
_walked: dict[str, WalkedMachine] = {}
HOSTS = {conventions.host: abi for abi in ABIS if (conventions := MACHINES[abi.name]).host}


def conventions_of(abi: Abi) -> Conventions:
    return MACHINES[abi.name]


def ends_call(abi: Abi, code: ReadCode, pc: int) -> bool:
    """True if a call may end at `pc`: for any address on machines whose calls are not looked at."""
    known = MACHINES[abi.name].ends_call
    return known is None or known(code, pc)


def starts_thread(abi: Abi, code: ReadCode, pc: int) -> bool:
    """True if a new thread, for which the system call before returned 0, begins at `pc`."""
    known = MACHINES[abi.name].starts_thread
    return known is not None and known(code, pc)


def walked_machine(abi: Abi) -> WalkedMachine:
    """The same in numbers, as walks need them."""
    if abi.name not in _walked:
        record, contexts = MACHINES[abi.name].frame_record, MACHINES[abi.name].contexts
        guess = None
        if record is not None:
            guess = caller_rule(record.rule, abi.ra)
            guess.guess, guess.sp_is_cfa = True, record.sp_is_cfa
        signal = caller_rule(contexts[0].rule(abi.sp, abi.fp), abi.ra, signal=True)
        pcs = array("q", [context.pc for context in contexts])
        places = array("q", [context.places.get(number, NOWHERE) for context in contexts for number in range(REGISTERS)])
        little = abi.byte_order == "little"
        _walked[abi.name] = WalkedMachine(abi.sp, abi.fp, abi.sp_offset, little, guess, signal, pcs, places)
        if (returning := MACHINES[abi.name].returning) is not None:
            _walked[abi.name].returning = caller_rule(returning.rule, abi.ra)
    return _walked[abi.name]
