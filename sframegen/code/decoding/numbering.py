"""Effects and states by number: each distinct one is computed once."""

from __future__ import annotations

from threading import local
from typing import TYPE_CHECKING

from sframegen.code.decoding.instruction_columns import DIRECT, EFFECTS, PADS, SLOT, InstructionReader
from sframegen.code.isa.disassembly import disassembler
from sframegen.code.isa.effects import Flow, Lose, Register
from sframegen.code.isa.frame_state import NOTHING, after, after_call, is_entry, join

if TYPE_CHECKING:
    from sframegen.code.isa.effects import Effects
    from sframegen.code.isa.frame_state import FrameState
    from sframegen.code.isa.instruction_set import Isa

MAX_NUMBERS = 1 << 14  # effects and states that all functions share: some hundred bytes each
MAX_EFFECTS = MAX_NUMBERS + (1 << 14)  # of these and a piece's; more than the instructions of a small piece
MAX_STEPS = 1 << 16  # from state to state, that are remembered
SMALL = 1 << 16  # bytes of code that may share numbers with others
CHUNK = 1 << 11  # bytes that are decoded at a time: capstone looks for the end of prefixes up to the end of these
MASK = 0xFFFFFFFFFFFFFFFF
ALIGNMENT = 16  # bytes: of SP, where a compiler's function calls another
KNOWN_SP, IS_ENTRY = 16, 32
CONTRADICTS = 64  # a function cannot return with the state: the analysis has gone wrong
LOST_SP = (Lose(Register.SP),)


class Meanings:
    """Effects by number, and which instructions have them. Has no reference to a reader, so that no cycle needs the collector."""

    def __init__(self, isa: Isa) -> None:
        self.isa = isa
        self.effects: list[Effects] = []
        self._numbers: dict[tuple[object, ...], int] = {}
        self.number(())  # is 0

    def number(self, effects: Effects) -> int:
        number = self._numbers.setdefault((*map(type, effects), *effects), len(self.effects))  # the tuples alone may be equal
        if number == len(self.effects):
            self.effects.append(effects)
        return number

    def mnemonic(self, mnemonic: str) -> tuple[bool, int]:
        """Return whether each such instruction matters, whatever its operands are, and its Take."""
        return mnemonic == ".byte" or self.isa.matters(mnemonic), self.isa.takes.get(mnemonic, 0)

    def meaning(self, mnemonic: str, operands: str, first_byte: int, address: int, end: int) -> tuple[int, int | None]:
        """See Teacher."""
        pads = self.isa.pads(mnemonic, operands) << PADS
        if mnemonic == ".byte":
            return Flow.STOP | pads, None
        point = self.isa.point(address, end, mnemonic, operands, first_byte)
        if point is None:
            return pads, None
        what = self.number(point.effects) << EFFECTS | pads | point.flow
        if point.target is not None:
            return what | 1 << DIRECT, point.target & MASK
        if point.slot is not None:
            return what | 1 << SLOT, point.slot & MASK
        return what, None


class Frames:
    """All effects and states of one ABI so far. Their numbers are valid only within one object of this class."""

    def __init__(self, isa: Isa) -> None:
        self.isa = isa
        self.disassembler = disassembler(*isa.capstone)
        meanings = Meanings(isa)
        self.reader = InstructionReader(meanings, self.disassembler, CHUNK, isa.needles, isa.prefix)
        self.effects = meanings.effects
        self.effects_number = meanings.number
        self.states: list[FrameState] = []
        self._states: dict[FrameState, int] = {}
        self.lost_sp = self.effects_number(LOST_SP)
        self.nothing = self.state_number(NOTHING)
        # Steps from state to state that were computed; forgotten when there are too many.
        self.moved: dict[int, int] = {}  #: by state << 32 | effects
        self.met: dict[int, int] = {}  #: by state << 32 | state
        self.called: dict[int, int] = {}
        self.facts: dict[int, int] = {}  #: of states, as facts_of() has them

    def is_full(self) -> bool:
        """Return True if no other function may share these numbers."""
        return len(self.effects) + len(self.states) > MAX_NUMBERS

    def has_too_many_effects(self) -> bool:
        """Return True if no more code of a piece may be read."""
        return len(self.effects) > MAX_EFFECTS

    def state_number(self, state: FrameState) -> int:
        number = self._states.setdefault(state, len(self.states))
        if number == len(self.states):
            self.states.append(state)
        return number

    # -- questions of the walk

    def after(self, state: int, effects: int) -> int:
        """Return the state after an instruction."""
        return _remember(self.moved, state << 32 | effects, self.state_number(after(self.states[state], self.effects[effects])))

    def join(self, one: int, other: int) -> int:
        """Return the state that holds on both paths."""
        return _remember(self.met, one << 32 | other, self.state_number(join(self.states[one], self.states[other])))

    def after_call(self, state: int) -> int:
        """Return the state after a call."""
        return _remember(self.called, state, self.state_number(after_call(self.states[state])))

    def facts_of(self, number: int) -> int:
        """Return what is asked most about a state: bits 0 to 3 are SP modulo ALIGNMENT if KNOWN_SP; IS_ENTRY; CONTRADICTS."""
        if number not in self.facts:
            state, entry = self.states[number], self.isa.entry
            contradicts = any(
                known is not None and known != expected
                for known, expected in ((state.sp, entry.sp), (state.fp, entry.fp), (state.ra, entry.ra if entry.ra else state.ra))
            )
            facts = 0 if state.sp is None else state.sp % ALIGNMENT | KNOWN_SP
            self.facts[number] = facts | is_entry(state, entry) * IS_ENTRY | contradicts * CONTRADICTS
        return self.facts[number]


def _remember(steps: dict[int, int], step: int, number: int) -> int:
    """Return the number, after keeping it for the step."""
    if len(steps) == MAX_STEPS:
        steps.clear()
    steps[step] = number
    return number


class _Current(local):
    def __init__(self) -> None:
        self.frames: dict[tuple[str, str], Frames] = {}


_current = _Current()


def frames_of(isa: Isa, size: int) -> Frames:
    """Return the numbers for `size` bytes of code: this thread's, or new ones if those are full or the code is large."""
    if size > SMALL:
        return Frames(isa)
    frames = _current.frames.get(isa.capstone)
    if frames is None or frames.is_full():
        frames = _current.frames[isa.capstone] = Frames(isa)
    return frames
