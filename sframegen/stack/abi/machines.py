"""The machines whose stacks are walked, a row for each ABI."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.format.abi import AARCH64, AARCH64_BE, ABIS, AMD64, S390X
from sframegen.stack.abi import aarch64, s390x, x86_64

if TYPE_CHECKING:
    from sframegen.format.abi import Abi
    from sframegen.stack.abi.conventions import Conventions, ReadCode

MACHINES = {
    AMD64.name: x86_64.CONVENTIONS,
    AARCH64.name: aarch64.CONVENTIONS,
    AARCH64_BE.name: aarch64.CONVENTIONS._replace(host=""),
    S390X.name: s390x.CONVENTIONS,
}
HOSTS = {conventions.host: abi for abi in ABIS if (conventions := MACHINES[abi.name]).host}


def conventions_of(abi: Abi) -> Conventions:
    return MACHINES[abi.name]


def ends_call(abi: Abi, code: ReadCode, pc: int) -> bool:
    """True if a call may end at `pc`: for any address on machines whose calls are not looked at."""
    known = MACHINES[abi.name].ends_call
    return known is None or known(code, pc)
