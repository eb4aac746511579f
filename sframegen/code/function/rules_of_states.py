"""Makes unwind rules of the frame states that the analysis has found: where the CFA, RA and the caller's FP are."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from sframegen.code.isa.effects import CALLERS, FrameState
from sframegen.format.model import Rule, Where

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sframegen.format.abi import Abi

UNKNOWN_PLACE = Where(None, 0)  # instead of the place of a caller's value, if that is unknown; compared by identity


def derive_rules(rows: Iterable[tuple[int, int, FrameState]], abi: Abi) -> Iterator[tuple[int, int, Rule]]:
    """Yield (start, end, rule) for the ascending rows (start, end, state) that determine a rule; equal neighbours are joined."""
    joined: tuple[int, int, Rule] | None = None
    for start, end, state in rows:
        rule = rule_of_state(state, abi.sp, abi.fp, abi.fixed_ra_offset)
        if rule is None:
            continue
        if joined is None:
            joined = start, end, rule
        elif joined[1] == start and joined[2] == rule:
            joined = joined[0], end, rule
        elif joined[1] <= start:
            if joined[0] < joined[1]:
                yield joined
            joined = start, end, rule
        else:  # instructions overlap: no row counts from where they do
            joined = joined[0], start, joined[2]
    if joined is not None and joined[0] < joined[1]:
        yield joined


@lru_cache(1 << 12)
def rule_of_state(state: FrameState, sp: int, fp: int, fixed_ra: int) -> Rule | None:
    """Return the unwind rule of a state, with DWARF register numbers; None if the CFA, RA or the caller's FP is unknown."""
    fp_offset = None if state.fp == CALLERS else state.fp
    has_frame_record = fp_offset is not None and fp_offset == state.fp_at  # FP points at the saved FP
    if state.sp is not None and not has_frame_record:
        cfa = Where(sp, -state.sp)
    elif fp_offset is not None:
        cfa = Where(fp, -fp_offset)
    else:
        return None
    has_fixed_ra = fixed_ra != 0 and state.ra_at == fixed_ra
    ra = Where(None, fixed_ra, deref=True) if has_fixed_ra else _saved_location(state, state.ra_at, state.ra)
    fp_location = _saved_location(state, state.fp_at, state.fp)
    if ra is UNKNOWN_PLACE or fp_location is UNKNOWN_PLACE or state.signed is None:
        return None
    return Rule(cfa, ra, fp_location, state.signed)


def _saved_location(state: FrameState, at: int | None, register: int | None) -> Where | None:
    """Return where the caller's value is: on the stack, at offset `at`; None if it is in its register; else UNKNOWN_PLACE.

    `register`: what the state says about the register that had the value on entry.
    """
    if at is not None and (state.sp is None or at >= state.sp):  # what is below SP may be overwritten
        return Where(None, at, deref=True)
    return None if register == CALLERS else UNKNOWN_PLACE
