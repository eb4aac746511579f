"""Code that the analysis does not follow: a function that changes stacks, copies its caller's registers, or goes to a handler.

The last, libgcc's _Unwind_Resume and the like, puts the frame of an exception's handler in place of its own caller's. It copies
where the handler's registers are saved over what it has saved itself, writes the handler's address over a return address, and goes
there (`__builtin_eh_return`). Its call frame information does not say so. The copying is a loop over all registers, the caller's FP
and in the end the return address among them: a walk would leave frames out, or take one for another.

The copying is one call, then comes one for debuggers, then what writes and jumps: so it is in gcc's macro uw_install_context.
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

MAX_FUNCTION = 1 << 14  # bytes: those of libgcc have less than 2 KiB
CALLS = 2  # from the copying on


class Installation(NamedTuple):
    """Addresses. In [copied, end) no rule is known to hold."""

    copied: int
    end: int


def jumps_in(code: Bytes, abi: Abi) -> Iterator[tuple[int, int]]:
    """Yield (start, end) offsets of what looks like the jump to a handler."""
    jump = MACHINES[abi.machine].eh_return if abi.byte_order == "little" else b""
    if jump:
        yield from (match.span() for match in re.finditer(jump, code, re.DOTALL))


def installations_in(code: Bytes, start: int, abi: Abi) -> list[Installation]:
    """Return all in one function, whose code is at address `start`."""
    jumps = [*jumps_in(code, abi)] if len(code) <= MAX_FUNCTION else []
    if not jumps:
        return []
    from sframegen.code.decoding.decoded_code import decode  # noqa: PLC0415 - capstone is slow to import, and few files need it
    from sframegen.code.isa.machines import isa_of  # noqa: PLC0415

    points = [*decode(code, start, isa_of(abi)).points()]
    instructions = {point.address for point in points}
    calls = [point for point in points if point.flow is Flow.CALL]
    found = []
    for first, end in jumps:
        if start + first in instructions:
            before = [call for call in calls if call.end <= start + first][-CALLS:]
            copied = before[0].address if len(before) == CALLS else start
            found.append(Installation(copied, start + end))
    return found


def clones(piece: DecodedCode, isa: Isa) -> bool:
    """Return True if the code seems to call clone directly: it returns twice, once on another stack, so SP is unknown."""
    call = isa.system_call
    return call.code in piece.code and any(
        call.chooses_clone.match(f"{mnemonic} {operands}") for _, _, mnemonic, operands in map(piece.instruction, range(len(piece)))
    )


def copies(instructions: Iterable[tuple[Instruction, FrameState | None]], what: str, isa: Isa) -> int:
    """Count the copies that a function makes of what its caller has in FP or in the return address's register.

    0: the value is nowhere but in its register. 1: it is only where the analysis follows it. More: it may be elsewhere, or may come
    back from a place that is not followed. An instruction counts if it may load the value again, or if it names the register, which
    holds the caller's value or nothing that is known, and does not only write it. `instructions`: with the state before each, None
    if it is not known. `what`: FP or RA.
    """
    copying = isa.copying
    register = copying.fp if what == "FP" else copying.ra
    if register is None:
        return 0
    count = 0
    for (_, _, mnemonic, operands), state in instructions:
        if not register.name.search(operands):
            continue
        text = f"{mnemonic} {operands}"
        if register.returns.match(text):
            count += 2
        if state is not None and (state.fp if what == "FP" else state.ra) != CALLERS:
            continue
        if mnemonic.startswith(copying.loads) and not register.name.search(operands.partition("[")[2]):
            continue
        first, _, rest = operands.partition(", ")
        if mnemonic == "xor" and first == rest:
            continue
        if register.name.search(rest if mnemonic in copying.writes and register.name.fullmatch(first) else operands):
            count += 1 if copying.followed.match(text) else 2  # a copy that is not followed may be anywhere
    return count
