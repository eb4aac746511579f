"""How often a function copies what its caller has in FP or the return address's register, by the text of its instructions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sframegen.code.isa.frame_state import CALLERS
from sframegen.format.abi import AARCH64, AMD64

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sframegen.code.isa.disassembly import Instruction
    from sframegen.code.isa.frame_state import State
    from sframegen.format.abi import Abi

NAMES = {
    (AMD64.name, "FP"): re.compile(r"\b[re]?bp\b"),
    (AARCH64.name, "FP"): re.compile(r"\b(?:[xw]29|fp)\b"),
    (AARCH64.name, "RA"): re.compile(r"\b(?:[xw]30|lr)\b"),
}
# Copies to where an analysis follows them; others count twice, as they may be anywhere.
FOLLOWED = {
    AMD64.name: re.compile(r"push rbp|mov qword ptr \[r[sb]p[^]*]*\], rbp"),
    AARCH64.name: re.compile(r"st\w+ [^[]*\[(?:sp|x29|fp)[],]"),
}
# What may bring it back, unseen: loads by other registers than SP and FP, moves from registers.
RETURNS = {
    (AMD64.name, "FP"): re.compile(r"(?:mov|movq|xchg|cmov\w+) rbp, (?:r(?![sb]p\b)\w+$|xmm|qword ptr (?:\w+:)?\[(?!r[sbi]p\b))"),
    (AARCH64.name, "FP"): re.compile(r"(?:mov x29, x|ld\w+ (?:x\d+, )?x29, (?:x\d+, )?\[(?!sp\b|x29\b))"),
    (AARCH64.name, "RA"): re.compile(r"(?:mov x30, x|ld\w+ (?:x\d+, )?x30, (?:x\d+, )?\[(?!sp\b|x29\b))"),
}
# Instructions that only write the register that is their first operand.
WRITES = {AMD64.name: {"mov", "movabs", "movzx", "lea", "pop"}, AARCH64.name: {"mov", "movz", "movn", "adr", "adrp"}}
LOADS = {AMD64.name: (), AARCH64.name: ("ld",)}  # begins of those that write all registers outside of brackets


def copies(instructions: Iterable[tuple[Instruction, State | None]], what: str, abi: Abi) -> int:
    """0: it is nowhere but in its register; 1: only where an analysis follows it; more: perhaps elsewhere, or back unseen.

    Counted are the instructions that name the register, but not only to write it, where it has the caller's value or nothing is
    known; and those that may bring it back. `instructions`: with the state before each, None where it is not known. `what`: FP, RA.
    """
    name = NAMES.get((abi.name, what))
    count = 0
    for (_, _, mnemonic, operands), state in instructions:
        if name is None or not name.search(operands):
            continue
        if RETURNS[abi.name, what].match(f"{mnemonic} {operands}"):
            count += 2
        if state is not None and (state.fp if what == "FP" else state.ra) != CALLERS:
            continue
        if mnemonic.startswith(LOADS[abi.name]) and not name.search(operands.partition("[")[2]):
            continue
        first, _, rest = operands.partition(", ")
        if mnemonic == "xor" and first == rest:
            continue
        if name.search(rest if mnemonic in WRITES[abi.name] and name.fullmatch(first) else operands):
            count += 1 if FOLLOWED[abi.name].match(f"{mnemonic} {operands}") else 2
    return count
