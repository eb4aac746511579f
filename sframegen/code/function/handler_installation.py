"""Code that puts the frame of an exception's handler in place of its own caller's: libgcc's _Unwind_Resume and the like.

Such a function copies where the handler's registers are saved over what it has saved itself, writes the handler's address over a
return address, and goes there (`__builtin_eh_return`). Its call frame information does not say so. The copying is a loop over all
registers, the caller's FP and in the end the return address among them: a walk would leave frames out, or take one for another.

The copying is one call, then comes one for debuggers, then what writes and jumps: so it is in gcc's macro uw_install_context.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from sframegen.elf.code_bytes.machines import MACHINES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.base.columns import Bytes
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
    from sframegen.code.decoding.pieces import decode  # noqa: PLC0415 - capstone is slow to import, and few files need it
    from sframegen.code.isa.effects import Flow  # noqa: PLC0415
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
