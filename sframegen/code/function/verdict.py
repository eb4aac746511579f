"""A rule compared with the frame that the instructions prove: the values of the CFA, RA and the caller's FP."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from sframegen.code.isa.frame_state import CALLERS

if TYPE_CHECKING:
    from sframegen.code.isa.frame_state import FrameState
    from sframegen.format.model import Rule, Where

RIGHT, UNDECIDED = "right", "undecided"
NOWHERE, ELSEWHERE = "", "?"  # it is not there; it is elsewhere, and not there unless it is in two places
UNLESS_COPIED = {"RA?": "RA", "FP?": "FP"}  # the part that is contradicted if the function copies the caller's value only once


@lru_cache(1 << 12)
def verdict(rule: Rule, key_b: bool, state: FrameState, sp: int, fp: int) -> str:
    """Return RIGHT, UNDECIDED, or the contradicted part: CFA, RA, FP, signature, RA?, FP?.

    A rule is undecided if it names other registers or an outermost frame, or if the state lacks a value. `sp`, `fp`: DWARF numbers.
    """
    cfa = rule.cfa
    if cfa is None or cfa.deref or cfa.register not in (sp, fp):
        return UNDECIDED
    base = state.sp if cfa.register == sp else state.fp
    if base is None:
        return UNDECIDED
    if base != -cfa.offset:
        return "CFA"
    found = RIGHT
    for name, place, register, at in (("RA", rule.ra, state.ra, state.ra_at), ("FP", rule.fp, state.fp, state.fp_at)):
        what = _found(place, register, at, state.sp)
        if what == NOWHERE:
            return name
        if what == ELSEWHERE:
            found = name + what
        elif what == UNDECIDED and found == RIGHT:
            found = what
    if found == RIGHT and (rule.ra_signed != state.signed or (rule.ra_signed and key_b != state.key_b)):
        return "signature" if None not in (state.signed, state.key_b) else UNDECIDED
    return found


def _found(place: Where | None, register: int | None, at: int | None, sp: int | None) -> str:
    """Return whether the caller's value is at `place`, given that its register holds `register`, and the stack has it at `at`."""
    if place is None:
        if register is not None:
            return RIGHT if register == CALLERS else NOWHERE
        return UNDECIDED if at is None else ELSEWHERE
    if place.register is not None or not place.deref:
        return UNDECIDED
    if at == place.offset:
        return RIGHT
    below = sp is not None and place.offset < sp  # no push has written there yet
    return ELSEWHERE if at is not None or (below and register == CALLERS) else UNDECIDED
