"""The effects of an instruction on the stack and on the flow of control, the same few for every ABI, and the frame after them.

Addresses on the stack are offsets from the CFA: SP = CFA + sp. None: unknown. effects.pxd has the numbers for compiled loops.
"""

from __future__ import annotations

from enum import IntEnum

from sframegen.base.quick_typing import NamedTuple, TypeAlias


class Register(IntEnum):
    """The registers that the analysis follows."""

    SP = 0
    FP = 1
    RA = 2  #: the return address's; only ABIs whose calls leave it in a register have one
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

    what: Register
    base: Register
    offset: int
    size: int


class Load(NamedTuple):
    """`target = *(base + offset)`."""

    target: Register
    base: Register
    offset: int


class Sign(NamedTuple):
    """The return address's register is signed with a key, or with `on` false authenticated."""

    on: bool
    key_b: bool


Effect: TypeAlias = Add | Lose | Store | Load | Sign
Effects: TypeAlias = tuple[Effect, ...]


class Flow(IntEnum):
    """Where control goes after an instruction."""

    NEXT = 0
    JUMP = 1
    BRANCH = 2  #: to its target or on
    INDIRECT = 3  #: jumps through a register or memory
    CALL = 4
    RETURN = 5
    STOP = 6  #: a trap: nothing follows


NEXT, JUMP, BRANCH, INDIRECT, CALL, RETURN, STOP = Flow


class PointFlag(IntEnum):
    """A flag of a point, in one number with its Flow; its effects' number is in the bits from EFFECTS_SHIFT on."""

    DIRECT = 8  #: with a target
    SLOT = 16  #: with the memory that has its target
    PADS = 32


DIRECT, SLOT, PADS = PointFlag
EFFECTS_SHIFT = 6


class Mark(IntEnum):
    """The mark of a byte of code: what begins there."""

    INSIDE = 0  #: nothing: it is inside an instruction
    BEGIN = 1
    PADDING = 2  #: an instruction that fills the space between functions


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


CALLERS = 1 << 62  # instead of an offset: the register holds what it held when the function was entered
MAX_OFFSET = 1 << 31  # bytes: the most that SFrame can express; real frames are smaller
WORD = 8
ALIGNMENT = 16  # bytes: of SP, where a compiler's function calls another


class StateFact(IntEnum):
    """Facts of a state in one number; bits 0 to 3 are SP modulo ALIGNMENT if it is known."""

    KNOWN_SP = 16
    IS_ENTRY = 32  #: it is the frame that functions are entered with
    CONTRADICTION = 64  #: a function cannot return with it: the analysis has gone wrong


KNOWN_SP, IS_ENTRY, CONTRADICTION = StateFact


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


def facts_of(state: FrameState, entry: FrameState) -> int:
    """Return the StateFacts in one number. `entry`: the frame that functions are entered with."""
    contradicts = any(
        known is not None and known != expected
        for known, expected in ((state.sp, entry.sp), (state.fp, entry.fp), (state.ra, entry.ra if entry.ra else state.ra))
    )
    facts = 0 if state.sp is None else state.sp % ALIGNMENT | KNOWN_SP
    return facts | is_entry(state, entry) * IS_ENTRY | contradicts * CONTRADICTION


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
