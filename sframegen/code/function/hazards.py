"""Code that the analysis does not follow: a function that changes stacks, or copies its caller's registers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.code.isa.frame_state import CALLERS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sframegen.code.decoding.pieces import Piece
    from sframegen.code.isa.disassembly import Instruction
    from sframegen.code.isa.frame_state import FrameState
    from sframegen.code.isa.instruction_set import Isa


def clones(piece: Piece, isa: Isa) -> bool:
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
