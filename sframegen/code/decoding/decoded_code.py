"""A decoded range of code: the places of its instructions, and those that touch the stack or the flow of control.

Effects and states of the frame have numbers (`Frames`): each distinct one is computed only once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from threading import local
from typing import TYPE_CHECKING, Any

from sframegen.code.decoding.instruction_columns import InstructionReader, Meanings
from sframegen.code.isa.disassembly import Instruction, disassembler
from sframegen.code.isa.effects import (
    DIRECT,
    NOTHING,
    SLOT,
    Flow,
    FrameState,
    Lose,
    Mark,
    Point,
    Register,
    after,
    after_call,
    facts_of,
    join,
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.base.columns import Bytes
    from sframegen.code.isa.instruction_set import Isa

MAX_NUMBERS = 1 << 14  # effects and states that functions share: a few hundred bytes each
MAX_STEPS = 1 << 16  # remembered steps from state to state
SMALL = 1 << 16  # bytes of code that may share numbers with others
CHUNK = 1 << 11  # bytes that are decoded at a time: capstone looks for the end of prefixes up to the end of these
LOST_SP = (Lose(Register.SP),)
MAX_EFFECTS = MAX_NUMBERS + (1 << 14)  # limit for a piece; small pieces have fewer instructions
WINDOW = 16  # instructions whose texts are made together


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


class DecodedCode:
    """The range [start, end), decoded from its first byte. `code_end`: where padding begins.

    `marks`: a Mark for each byte. `offsets`: of instructions. Points by columns: `at`, `ends`: offsets; `effects`: numbers of
    `frames`; `flows`: Flow, with DIRECT or SLOT where `addresses` has the target or the slot. `taken`: addresses that instructions
    at the offsets `taken_at` put into registers.
    """

    offsets: array[int]
    at: array[int]
    ends: array[int]
    effects: array[int]
    flows: bytearray
    addresses: array[int]
    taken: array[int]
    taken_at: array[int]

    def __init__(self, code: Bytes, start: int, frames: Frames) -> None:
        self.code = bytes(code)
        self.start = start
        self.end = start + len(code)
        self.frames = frames
        self.marks = bytearray(len(code))
        self._texts: dict[int, list[Instruction]] = {}
        self._targets: set[int] | None = None
        self._decode()
        self._find_padding()

    def head(self, end: int) -> DecodedCode:
        """Return [start, end) as if it were decoded alone: an instruction ends at `end`."""
        size = end - self.start
        head = DecodedCode.__new__(DecodedCode)
        head.code, head.marks = self.code[:size], self.marks[:size]
        head.start, head.end = self.start, end
        head.frames = self.frames
        head._texts = {}  # noqa: SLF001 - here and below: it is a piece, too
        head._targets = None  # noqa: SLF001
        head.offsets = self.offsets[: bisect_left(self.offsets, size)]
        points, taken = bisect_left(self.at, size), bisect_left(self.taken_at, size)
        head.at, head.ends, head.effects = self.at[:points], self.ends[:points], self.effects[:points]
        head.flows, head.addresses = self.flows[:points], self.addresses[:points]
        head.taken, head.taken_at = self.taken[:taken], self.taken_at[:taken]
        head._find_padding()  # noqa: SLF001
        return head

    def _find_padding(self) -> None:
        last = self.marks.rfind(Mark.BEGIN)  # later instructions are padding
        padding = self.marks.find(Mark.PADDING, last + 1)
        self.code_end = self.end if padding < 0 else self.start + padding

    def _decode(self) -> None:
        reader, longest = self.frames.reader, self.frames.isa.longest
        size = len(self.code)
        reader.begin()
        columns: list[Any] = []
        here = 0
        while here < size:
            end = min(size, here + CHUNK)
            limit = end if end == size else end - longest  # the last instruction may be cut off
            found: list[Any] = reader.read(self.code, self.start, here, end, limit, self.marks)
            for number, more in enumerate(found if columns else ()):
                columns[number] += more
            columns = columns or found
            if not reader.consumed or len(self.frames.effects) > MAX_EFFECTS:
                break
            here += reader.consumed
        columns = columns or [array("I"), array("I"), array("I"), array("I"), bytearray(), array("Q"), array("Q"), array("I")]
        if here < size:  # the rest is less than an instruction, or not code
            self.marks[here] = Mark.BEGIN
            for column, value in zip(columns[:6], (here, here, size, 0, Flow.STOP, 0), strict=True):
                column.append(value)
        self.offsets, self.at, self.ends, self.effects, self.flows, self.addresses, self.taken, self.taken_at = columns
        if self.frames.isa.by_register and self.frames.lost_sp in self.effects:
            self._by_register()

    def _by_register(self) -> None:
        """Find the effects where SP moves by a register that earlier instructions set."""
        by_register = self.frames.isa.by_register
        for number, effects in enumerate(self.effects):
            if effects == self.frames.lost_sp and by_register:
                place = bisect_left(self.offsets, self.at[number])
                before = [self.instruction(near) for near in range(max(0, place - WINDOW // 2), place + 1)]
                known = by_register(before, len(before) - 1)
                if known:
                    self.effects[number] = self.frames.effects_number(known)

    # -- instructions

    def __len__(self) -> int:
        """Return the number of instructions."""
        return len(self.offsets)

    def instruction(self, number: int) -> Instruction:
        """Return one instruction. Texts are made on demand, for it and a few around it."""
        window, place = divmod(number, WINDOW)
        if window not in self._texts:
            begin = self.offsets[window * WINDOW]
            after = (window + 1) * WINDOW
            code = self.code[begin : self.offsets[after] if after < len(self.offsets) else len(self.code)]
            found = list(disassembler(*self.frames.isa.capstone).texts(code, self.start + begin))
            if len(found) < min(WINDOW, len(self.offsets) - window * WINDOW):  # less than an instruction
                here = self.offsets[-1]
                found.append((self.start + here, len(self.code) - here, ".byte", ""))
            self._texts[window] = found
        return self._texts[window][place]

    def number(self, address: int) -> int:
        """Return the number of the first instruction that begins at or after an address."""
        return bisect_left(self.offsets, address - self.start) if address >= self.start else 0

    def begins(self, address: int) -> bool:
        return self.start <= address < self.end and self.marks[address - self.start] != 0

    def begin(self, address: int) -> int:
        """Return the begin of the instruction that holds an address of the piece."""
        while not self.marks[address - self.start]:
            address -= 1
        return address

    def instruction_around(self, address: int) -> tuple[bytes, int]:
        """Return the bytes of the instruction that holds an address of the piece, and the offset of the address in it."""
        begin = self.begin(address)
        number = self.number(begin) + 1
        end = self.offsets[number] if number < len(self.offsets) else len(self.code)
        return self.code[begin - self.start : end], address - begin

    def after_padding(self, address: int) -> int:
        """Return the first instruction from an address on that does not pad; the end if there is none."""
        place = self.marks.find(Mark.BEGIN, address - self.start)
        return self.end if place < 0 else self.start + place

    # -- points

    def points(self) -> Iterator[Point]:
        return map(self.point, range(len(self.at)))

    def flow_points(self) -> Iterator[Point]:
        """Return the points that change the flow of control."""
        return (self.point(number) for number, flow in enumerate(self.flows) if flow)

    def numbers_of(self, kind: int) -> Iterator[int]:
        """Return the numbers of the points whose Flow, with its bit DIRECT or SLOT, is `kind`."""
        number = self.flows.find(kind)
        while number >= 0:
            yield number
            number = self.flows.find(kind, number + 1)

    def targets(self) -> set[int]:
        if self._targets is None:
            kinds = (Flow.JUMP | DIRECT, Flow.BRANCH | DIRECT)
            self._targets = {self.addresses[number] for kind in kinds for number in self.numbers_of(kind)}
        return self._targets

    def point(self, number: int) -> Point:
        flow, address = self.flows[number], self.addresses[number]
        return Point(
            self.start + self.at[number],
            self.start + self.ends[number],
            self.frames.effects[self.effects[number]],
            FLOWS[flow & 7],
            address if flow & DIRECT else None,
            address if flow & SLOT else None,
        )


FLOWS = list(Flow)


def decode(code: Bytes, start: int, isa: Isa) -> DecodedCode:
    """Decode [start, start + len(code))."""
    return DecodedCode(code, start, frames_of(isa, len(code)))


def is_alike_from(code: bytes, place: int, isa: Isa) -> bool:
    """Return True if an instruction does the same without its first bytes: it has a prefix that a jump skips."""
    whole, part = decode(code, 0, isa), decode(code[place:], 0, isa)
    same = [(point.effects, point.flow) for point in whole.points()] == [(point.effects, point.flow) for point in part.points()]
    return same and not any(whole.flows)
