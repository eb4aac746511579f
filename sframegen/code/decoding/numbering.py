"""The numbers of effects and states. Each distinct one is computed only once."""

from __future__ import annotations

from threading import local
from typing import TYPE_CHECKING

from sframegen.code.decoding.instruction_columns import InstructionReader, Meanings
from sframegen.code.isa.effects import NOTHING, FrameState, Lose, Register, after, after_call, facts_of, join

if TYPE_CHECKING:
    from sframegen.code.isa.instruction_set import Isa

MAX_NUMBERS = 1 << 14  # effects and states that functions share: a few hundred bytes each
MAX_STEPS = 1 << 16  # remembered steps from state to state
SMALL = 1 << 16  # bytes of code that may share numbers with others
CHUNK = 1 << 11  # bytes that are decoded at a time: capstone looks for the end of prefixes up to the end of these
LOST_SP = (Lose(Register.SP),)


class Frames:
    """All effects and states of one ABI so far. Their numbers are valid only within one object of this class."""

    def __init__(self, isa: Isa) -> None:
        self.isa = isa
        meanings = Meanings(isa)
        self.reader = InstructionReader(meanings, CHUNK)
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
        self.facts: dict[int, int] = {}  #: StateFacts by state

    def is_full(self) -> bool:
        """Return True if no other function may share these numbers."""
        return len(self.effects) + len(self.states) > MAX_NUMBERS

    def state_number(self, state: FrameState) -> int:
        number = self._states.setdefault(state, len(self.states))
        if number == len(self.states):
            self.states.append(state)
        return number

    # -- look-ups for the walk

    def after(self, state: int, effects: int) -> int:
        return _remember(self.moved, state << 32 | effects, self.state_number(after(self.states[state], self.effects[effects])))

    def join(self, one: int, other: int) -> int:
        return _remember(self.met, one << 32 | other, self.state_number(join(self.states[one], self.states[other])))

    def after_call(self, state: int) -> int:
        return _remember(self.called, state, self.state_number(after_call(self.states[state])))

    def facts_of(self, number: int) -> int:
        if number not in self.facts:
            self.facts[number] = facts_of(self.states[number], self.isa.entry)
        return self.facts[number]


def _remember(steps: dict[int, int], step: int, number: int) -> int:
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
