"""Effects and states by number, so that what needs thought is thought of once for each distinct one."""

from __future__ import annotations

from threading import local
from typing import TYPE_CHECKING

from sframegen.code.disassembly import disassembler
from sframegen.code.effects import Flow, Lose, Register
from sframegen.code.records import DIRECT, EFFECTS, PADS, SLOT, Reader
from sframegen.code.state import NOTHING, after, after_call, join

if TYPE_CHECKING:
    from sframegen.code.effects import Effects
    from sframegen.code.isa import Isa
    from sframegen.code.state import State

MAX_KNOWN = 1 << 18  # texts, and steps from state to state: some hundred bytes each, with their effects and states
CHUNK = 1 << 11  # bytes that are decoded at a time: capstone looks for the end of prefixes up to the end of these
MASK = 0xFFFFFFFFFFFFFFFF
LOST_SP = (Lose(Register.SP),)


class Frames:
    """All that was met of one ABI. The numbers hold within one of these."""

    def __init__(self, isa: Isa) -> None:
        self.isa = isa
        self.disassembler = disassembler(*isa.capstone)
        self.reader = Reader(self, self.disassembler.fields, CHUNK, isa.needles, isa.prefix)
        self.effects: list[Effects] = []
        self.states: list[State] = []
        self._effects: dict[tuple[object, ...], int] = {}
        self._states: dict[State, int] = {}
        self.effects_number(())  # is 0
        self.lost_sp = self.effects_number(LOST_SP)
        self.nothing = self.state_number(NOTHING)
        self.moved: dict[int, int] = {}  #: by state << 32 | effects
        self.met: dict[int, int] = {}  #: by state << 32 | state
        self.called: dict[int, int] = {}
        self.wrong: dict[int, bool] = {}  #: whether a function cannot return with the state

    def is_full(self) -> bool:
        """Effects have texts, and states steps that lead to them."""
        texts: int = self.reader.texts
        return texts + len(self.moved) + len(self.met) > MAX_KNOWN

    def effects_number(self, effects: Effects) -> int:
        number = self._effects.setdefault((*map(type, effects), *effects), len(self.effects))  # the tuples alone may be equal
        if number == len(self.effects):
            self.effects.append(effects)
        return number

    def state_number(self, state: State) -> int:
        number = self._states.setdefault(state, len(self.states))
        if number == len(self.states):
            self.states.append(state)
        return number

    # -- what the reader asks

    def mnemonic(self, mnemonic: str) -> tuple[bool, int]:
        """Whether each such instruction matters, whatever its operands are; its Take."""
        return mnemonic == ".byte" or self.isa.matters(mnemonic), self.isa.takes.get(mnemonic, 0)

    def meaning(self, mnemonic: str, operands: str, first_byte: int, address: int, end: int) -> tuple[int, int | None]:
        """See records.py."""
        pads = self.isa.pads(mnemonic, operands) << PADS
        if mnemonic == ".byte":
            return Flow.STOP | pads, None
        point = self.isa.point(address, end, mnemonic, operands, first_byte)
        if point is None:
            return pads, None
        what = self.effects_number(point.effects) << EFFECTS | pads | point.flow
        if point.target is not None:
            return what | 1 << DIRECT, point.target & MASK
        if point.slot is not None:
            return what | 1 << SLOT, point.slot & MASK
        return what, None

    # -- what the walk asks

    def after(self, state: int, effects: int) -> int:
        """The state behind an instruction."""
        number = self.moved[state << 32 | effects] = self.state_number(after(self.states[state], self.effects[effects]))
        return number

    def join(self, one: int, other: int) -> int:
        """What holds on both paths."""
        number = self.met[one << 32 | other] = self.state_number(join(self.states[one], self.states[other]))
        return number

    def after_call(self, state: int) -> int:
        """The state behind a call."""
        number = self.called[state] = self.state_number(after_call(self.states[state]))
        return number

    def contradicts(self, number: int) -> bool:
        """Whether a function cannot return with the state: what was thought of it is wrong."""
        if number not in self.wrong:
            state, entry = self.states[number], self.isa.entry
            self.wrong[number] = any(
                known is not None and known != expected
                for known, expected in ((state.sp, entry.sp), (state.fp, entry.fp), (state.ra, entry.ra if entry.ra else state.ra))
            )
        return self.wrong[number]


class _Current(local):
    def __init__(self) -> None:
        self.frames: dict[tuple[str, str], Frames] = {}


_current = _Current()


def frames_of(isa: Isa) -> Frames:
    """The frames that a thread has met; new ones where those before know too much."""
    frames = _current.frames.get(isa.capstone)
    if frames is None or frames.is_full():
        frames = _current.frames[isa.capstone] = Frames(isa)
    return frames
