"""Defines the effects of instructions on the stack and the flow of control, for all ABIs, and applies them to a frame's state.

Addresses on the stack are offsets from the CFA: SP = CFA + sp. None: unknown. effects.pxd has the numbers for compiled loops.
"""

from __future__ import annotations

from enum import IntEnum

from sframegen.base.quick_typing import NamedTuple, TypeAlias


class Register(IntEnum):
    """The registers that the analysis follows."""

    SP = 0
    FP = 1
    RA = 2  #: the register of the return address, on machines whose calls leave it in a register
    OTHER = 3  #: any register that is not followed


class Add(NamedTuple):
    """`target = source + offset`."""

    target: Register
    source: Register
    offset: int


class Lose(NamedTuple):
    """The register gets an unknown value."""

    target: Register


class Store(NamedTuple):
    """`size` bytes at `base + offset` are overwritten, with the register's 8 bytes or with something else (OTHER)."""

    register: Register
    base: Register
    offset: int
    size: int


class Load(NamedTuple):
    """`target = *(base + offset)`."""

    target: Register
    base: Register
    offset: int


class Sign(NamedTuple):
    """The register of the return address is signed with a key, or authenticated if `on` is false."""

    on: bool
    key_b: bool


Effect: TypeAlias = Add | Lose | Store | Load | Sign
Effects: TypeAlias = tuple[Effect, ...]


class Flow(IntEnum):
    """Where control goes after an instruction."""

    NEXT = 0
    JUMP = 1
    BRANCH = 2  #: to its target or to the next instruction
    INDIRECT = 3  #: jumps through a register or memory
    CALL = 4
    RETURN = 5
    STOP = 6  #: a trap: nothing follows


NEXT, JUMP, BRANCH, INDIRECT, CALL, RETURN, STOP = Flow


class PointFlag(IntEnum):
    """A flag of a point, in one number with its Flow; the number of its effects is in the bits from EFFECTS_SHIFT on."""

    DIRECT = 8  #: its target is known
    SLOT = 16  #: the address of the memory that holds its target is known
    PADS = 32  #: it fills the space between functions


DIRECT, SLOT, PADS = PointFlag
FLOW_MASK, EFFECTS_SHIFT = 7, 6  # the Flow is below the flags, the number of effects above them


class Mark(IntEnum):
    """The mark of a byte of code."""

    INSIDE = 0  #: inside an instruction, not its first byte
    BEGIN = 1  #: the first byte of an instruction that is not padding
    PADDING = 2  #: the first byte of an instruction that fills the space between functions


INSIDE, BEGIN, PADDING = Mark


class Take(IntEnum):
    """How an instruction may put an address into a register."""

    NOT = 0
    RELATIVE = 1  #: `lea rax, [rip + 5]`
    CONSTANT = 2  #: `mov eax, 0x401000`
    PAGE = 3  #: `adrp x0, #0x1000`
    IN_PAGE = 4  #: `add x0, x0, #16`


_, RELATIVE, CONSTANT, PAGE, IN_PAGE = Take


class Point(NamedTuple):
    """An instruction that touches the stack or the flow of control."""

    address: int
    end: int
    effects: Effects
    flow: Flow = Flow.NEXT
    target: int | None = None  #: of a direct jump or call
    slot: int | None = None  #: the memory that an indirect jump or call reads its target from, if its address is fixed


CALLERS = 1 << 62  # instead of an offset: the register still has the value that it had when the function was entered
MAX_OFFSET = 1 << 31  # bytes: the most that SFrame can express; real frames are smaller
WORD = 8
ALIGNMENT = 16  # bytes: compilers align SP so before a call


class StateFact(IntEnum):
    """Facts of a state in one number; bits 0 to 3 are SP modulo ALIGNMENT if it is known."""

    KNOWN_SP = 16
    IS_ENTRY = 32  #: it is the frame that functions are entered with
    CONTRADICTION = 64  #: a function cannot return with it: the analysis has gone wrong


KNOWN_SP, IS_ENTRY, CONTRADICTION = StateFact


class FrameState(NamedTuple):
    """The frame before an instruction. `fp`, `ra`: the registers; `fp_at`, `ra_at`: stack offsets of the saved caller's values."""

    sp: int | None
    fp: int | None = CALLERS
    ra: int | None = CALLERS
    fp_at: int | None = None
    ra_at: int | None = None
    signed: bool | None = False
    key_b: bool | None = False


UNKNOWN_STATE = FrameState(None, None, None, None, None, None, None)


def join_states(one: FrameState, other: FrameState) -> FrameState:
    """Return the state where two paths meet: only the fields that are equal on both."""
    return one if one == other else FrameState._make([a if a == b else None for a, b in zip(one, other, strict=True)])


def apply_effects(state: FrameState, effects: Effects) -> FrameState:
    for effect in effects:
        state = _apply_effect(state, effect)
    return state


def apply_call(state: FrameState) -> FrameState:
    """Return the state after a call, given that a callee keeps SP, FP and the stack above SP."""
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


def compute_facts(state: FrameState, entry: FrameState) -> int:
    """Return the StateFacts in one number. `entry`: the frame that functions are entered with."""
    contradicts = any(
        known is not None and known != expected
        for known, expected in ((state.sp, entry.sp), (state.fp, entry.fp), (state.ra, entry.ra if entry.ra else state.ra))
    )
    facts = 0 if state.sp is None else state.sp % ALIGNMENT | KNOWN_SP
    return facts | is_entry(state, entry) * IS_ENTRY | contradicts * CONTRADICTION


def _offset_from_cfa(state: FrameState, base: Register, offset: int) -> int | None:
    value = state[base]
    if value is None or value == CALLERS or not -MAX_OFFSET < value + offset < MAX_OFFSET:
        return None
    return value + offset


def _apply_effect(state: FrameState, effect: Effect) -> FrameState:
    match effect:
        case Add(Register.SP, source, offset):
            return state._replace(sp=_offset_from_cfa(state, source, offset))
        case Add(Register.FP, source, offset):
            return state._replace(fp=_offset_from_cfa(state, source, offset))
        case Store(register, base, offset, size):
            return _apply_store(state, register, _offset_from_cfa(state, base, offset), size)
        case Load(Register.FP, base, offset):
            at = _offset_from_cfa(state, base, offset)
            return state._replace(fp=CALLERS if at is not None and at == state.fp_at else None)
        case Load(Register.RA, base, offset):
            at = _offset_from_cfa(state, base, offset)
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


def _apply_store(state: FrameState, register: Register, at: int | None, size: int) -> FrameState:
    if at is None:
        return state
    fp_at, ra_at = state.fp_at, state.ra_at
    if fp_at is not None and fp_at - size < at < fp_at + WORD:
        fp_at = None
    if ra_at is not None and ra_at - size < at < ra_at + WORD:
        ra_at = None
    if register is Register.FP and state.fp == CALLERS:
        fp_at = at
    elif register is Register.RA and state.ra == CALLERS:
        ra_at = at
    return state if (fp_at, ra_at) == (state.fp_at, state.ra_at) else state._replace(fp_at=fp_at, ra_at=ra_at)
