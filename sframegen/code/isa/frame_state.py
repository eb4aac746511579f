"""What is known of a frame at one place in a function, and how an effect changes it.

Addresses on the stack are offsets from the CFA: SP = CFA + sp. None: unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sframegen.code.isa.effects import Add, Load, Lose, Register, Sign, Store

if TYPE_CHECKING:
    from sframegen.code.isa.effects import Effect, Effects

CALLERS = 1 << 62  # instead of an offset: the register holds what it held when the function was entered
MAX_OFFSET = 1 << 31  # bytes: what SFrame can say, and no real frame is larger
WORD = 8


class FrameState(NamedTuple):
    """The frame. `fp` and `ra`: the registers; `fp_at`, `ra_at`: where on the stack the caller's values are kept."""

    sp: int | None
    fp: int | None = CALLERS
    ra: int | None = CALLERS
    fp_at: int | None = None
    ra_at: int | None = None
    signed: bool | None = False
    key_b: bool | None = False


NOTHING = FrameState(None, None, None, None, None, None, None)


def join(one: FrameState, other: FrameState) -> FrameState:
    """Return what is true on both paths."""
    return one if one == other else FrameState._make([a if a == b else None for a, b in zip(one, other, strict=True)])


def after(state: FrameState, effects: Effects) -> FrameState:
    """Return the state after an instruction's effects, in their order."""
    for effect in effects:
        state = _after(state, effect)
    return state


def after_call(state: FrameState) -> FrameState:
    """Return the state after a call: a callee keeps SP, FP and the stack above SP."""
    sp, fp_at, ra_at = state.sp, state.fp_at, state.ra_at
    if sp is None:
        return state
    if fp_at is not None and fp_at < sp:
        state = state._replace(fp_at=None)
    return state._replace(ra_at=None) if ra_at is not None and ra_at < sp else state


def is_entry(state: FrameState, entry: FrameState) -> bool:
    """Return True if the frame is the one that a function is entered with."""
    known = (state.sp, state.fp) == (entry.sp, CALLERS)
    return known and (entry.ra is None or state.ra == CALLERS) and entry.ra_at in (None, state.ra_at)


def _address(state: FrameState, base: Register, offset: int) -> int | None:
    value = state[base]
    if value is None or value == CALLERS or not -MAX_OFFSET < value + offset < MAX_OFFSET:
        return None
    return value + offset


def _after(state: FrameState, effect: Effect) -> FrameState:
    match effect:
        case Add(Register.SP, source, offset):
            return state._replace(sp=_address(state, source, offset))
        case Add(Register.FP, source, offset):
            return state._replace(fp=_address(state, source, offset))
        case Store(what, base, offset, size):
            return _stored(state, what, _address(state, base, offset), size)
        case Load(Register.FP, base, offset):
            at = _address(state, base, offset)
            return state._replace(fp=CALLERS if at is not None and at == state.fp_at else None)
        case Load(Register.RA, base, offset):
            at = _address(state, base, offset)
            return state._replace(ra=CALLERS if at is not None and at == state.ra_at else None)
        case Lose(Register.SP) | Load(Register.SP) | Add(Register.SP):
            return state._replace(sp=None)
        case Lose(Register.FP) | Add(Register.FP):
            return state._replace(fp=None)
        case Lose(Register.RA) | Add(Register.RA):
            return state._replace(ra=None)
        case Sign(on, key_b):
            if state.signed is None or state.signed is on or state.ra != CALLERS or (not on and state.key_b is not key_b):
                return state._replace(ra=None, signed=None)
            return state._replace(signed=on, key_b=key_b if on else False)
    return state


def _stored(state: FrameState, what: Register, at: int | None, size: int) -> FrameState:
    if at is None:
        return state
    fp_at, ra_at = state.fp_at, state.ra_at
    if fp_at is not None and fp_at - size < at < fp_at + WORD:
        fp_at = None
    if ra_at is not None and ra_at - size < at < ra_at + WORD:
        ra_at = None
    if what is Register.FP and state.fp == CALLERS:
        fp_at = at
    elif what is Register.RA and state.ra == CALLERS:
        ra_at = at
    return state if (fp_at, ra_at) == (state.fp_at, state.ra_at) else state._replace(fp_at=fp_at, ra_at=ra_at)
