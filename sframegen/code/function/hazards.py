"""Recognises code that the analysis cannot follow: it changes stacks, copies its caller's registers, or jumps to a handler.

libgcc's _Unwind_Resume and similar functions replace the frame of their caller by that of an exception's handler. They copy the
handler's registers over the registers that they have saved themselves, write the handler's address over a return address, and
jump there (`__builtin_eh_return`). Their call frame information does not show this. The copying is a loop over all registers, which
include the caller's FP and at last the return address, so that a walk in between would miss frames or confuse them.

gcc's macro uw_install_context calls a function that copies, then one for debuggers; then it writes the address and jumps.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from sframegen.code.isa.effects import CALLERS, Flow, FrameState
from sframegen.elf.code_bytes.machines import MACHINES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sframegen.base.columns import Bytes
    from sframegen.code.decoding.decoded_code import DecodedCode
    from sframegen.code.isa.disassembly import Instruction
    from sframegen.code.isa.instruction_set import Isa
    from sframegen.format.abi import Abi

MAX_FUNCTION = 1 << 14  # bytes: libgcc's functions of this kind have less than 2 KiB
CALLS_FROM_COPYING = 2  # the call that copies, and the one for debuggers


class Installation(NamedTuple):
    """The code that installs a handler's frame. From the address `copied` up to `end`, no rule is known to hold."""

    copied: int
    end: int


def find_handler_jumps(code: Bytes, abi: Abi) -> Iterator[tuple[int, int]]:
    """Yield the (start, end) offsets of bytes that look like the jump to a handler."""
    jump = MACHINES[abi.machine].eh_return if abi.byte_order == "little" else b""
    if jump:
        yield from (match.span() for match in re.finditer(jump, code, re.DOTALL))


def find_installations(code: Bytes, start: int, abi: Abi) -> list[Installation]:
    """Return all installations in one function, whose code is at address `start`."""
    jumps = [*find_handler_jumps(code, abi)] if len(code) <= MAX_FUNCTION else []
    if not jumps:
        return []
    from sframegen.code.decoding.decoded_code import decode  # noqa: PLC0415 - capstone is slow to import, and few files need it
    from sframegen.code.isa.machines import isa_of  # noqa: PLC0415

    points = [*decode(code, start, isa_of(abi)).points()]
    instructions = {point.address for point in points}
    calls = [point for point in points if point.flow is Flow.CALL]
    found = []
    for jump, end in jumps:
        if start + jump in instructions:
            before = [call for call in calls if call.end <= start + jump][-CALLS_FROM_COPYING:]
            copied = before[0].address if len(before) == CALLS_FROM_COPYING else start
            found.append(Installation(copied, start + end))
    return found


def may_call_clone(piece: DecodedCode, isa: Isa) -> bool:
    """Return True if the code seems to make the system call clone, which returns twice, once on another stack: SP is unknown."""
    call = isa.system_call
    return call.code in piece.code and any(
        call.chooses_clone.match(f"{mnemonic} {operands}") for _, _, mnemonic, operands in map(piece.instruction, range(len(piece)))
    )


def count_copies(instructions: Iterable[tuple[Instruction, FrameState | None]], register_name: str, isa: Isa) -> int:
    """Count the copies that a function makes of its caller's value in FP or in the register of the return address.

    0: only the register has the value. 1: a location that the analysis follows also has it. More: other locations may have it, or
    the register may be loaded from such a location. An instruction counts if it may load the register so, or if it names the
    register while that has the caller's or an unknown value, unless it only writes it. `instructions`: each with the state before
    it, None if unknown. `register_name`: FP or RA.
    """
    copying = isa.copying
    register = copying.fp if register_name == "FP" else copying.ra
    if register is None:
        return 0
    count = 0
    for (_, _, mnemonic, operands), state in instructions:
        if not register.names_register.search(operands):
            continue
        text = f"{mnemonic} {operands}"
        if register.reloads.match(text):
            count += 2
        if state is not None and (state.fp if register_name == "FP" else state.ra) != CALLERS:
            continue
        if mnemonic.startswith(copying.loads) and not register.names_register.search(operands.partition("[")[2]):
            continue
        first, _, others = operands.partition(", ")
        if mnemonic == "xor" and first == others:  # it clears the register
            continue
        only_writes = mnemonic in copying.only_write_first and register.names_register.fullmatch(first)
        if register.names_register.search(others if only_writes else operands):
            count += 1 if copying.followed_copies.match(text) else 2  # a copy that is not followed may be anywhere
    return count
