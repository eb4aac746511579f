"""Decodes a range of code: where its instructions begin, and which of them touch the stack or the flow of control.

Effects and states of the frame have numbers (`FrameNumbers`), so that each distinct one is computed only once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from threading import local
from typing import TYPE_CHECKING, Any

from sframegen.code.decoding.instruction_columns import InstructionReader, Meanings
from sframegen.code.isa import effects as transfer  # its functions are the transfer functions of the data-flow analysis
from sframegen.code.isa.disassembly import Instruction, make_disassembler
from sframegen.code.isa.effects import DIRECT, FLOW_MASK, SLOT, UNKNOWN_STATE, Flow, FrameState, Lose, Mark, Point, Register

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.base.columns import Bytes
    from sframegen.code.isa.instruction_set import Isa

MAX_NUMBERS = 1 << 14  # effects and states that functions share; each takes a few hundred bytes
MAX_STEPS = 1 << 16  # steps from state to state that are remembered
MAX_SHARED_CODE = 1 << 16  # bytes of code that may share numbers with others
CHUNK = 1 << 11  # bytes that are decoded at a time: capstone looks for the end of prefixes up to the end of these
LOST_SP = (Lose(Register.SP),)
MAX_EFFECTS = MAX_NUMBERS + (1 << 14)  # after which decoding stops; small pieces have fewer instructions
WINDOW = 16  # instructions that are disassembled to text together
FLOWS = list(Flow)  # indexing is faster than Flow(number)


class FrameNumbers:
    """Numbers all effects and states of one ABI so far. The numbers are valid only within one object of this class."""

    def __init__(self, isa: Isa) -> None:
        self.isa = isa
        meanings = Meanings(isa)
        self.reader = InstructionReader(meanings, CHUNK)
        self.effects = meanings.effects
        self.effects_number = meanings.effects_number
        self.states: list[FrameState] = []
        self._states: dict[FrameState, int] = {}
        self.lost_sp = self.effects_number(LOST_SP)
        self.unknown_state = self.state_number(UNKNOWN_STATE)
        # Caches of steps from state to state; each is cleared when it has too many.
        self.after_effects: dict[int, int] = {}  #: by state << 32 | effects
        self.joined: dict[int, int] = {}  #: by state << 32 | state
        self.after_calls: dict[int, int] = {}  #: by state
        self.facts: dict[int, int] = {}  #: StateFacts, by state

    def is_full(self) -> bool:
        """Return True if there are too many numbers for another function to share them."""
        return len(self.effects) + len(self.states) > MAX_NUMBERS

    def state_number(self, state: FrameState) -> int:
        number = self._states.setdefault(state, len(self.states))
        if number == len(self.states):
            self.states.append(state)
        return number

    # -- steps that the walk did not find in the caches

    def apply_effects(self, state: int, effects: int) -> int:
        after = transfer.apply_effects(self.states[state], self.effects[effects])
        return _remember(self.after_effects, state << 32 | effects, self.state_number(after))

    def join_states(self, one: int, other: int) -> int:
        joined = transfer.join_states(self.states[one], self.states[other])
        return _remember(self.joined, one << 32 | other, self.state_number(joined))

    def apply_call(self, state: int) -> int:
        return _remember(self.after_calls, state, self.state_number(transfer.apply_call(self.states[state])))

    def compute_facts(self, number: int) -> int:
        if number not in self.facts:
            self.facts[number] = transfer.compute_facts(self.states[number], self.isa.entry)
        return self.facts[number]


def _remember(steps: dict[int, int], step: int, number: int) -> int:
    if len(steps) == MAX_STEPS:
        steps.clear()
    steps[step] = number
    return number


class _ThreadFrames(local):
    def __init__(self) -> None:
        self.frames: dict[tuple[str, str], FrameNumbers] = {}  # by Isa.capstone, for all code that this thread decodes


_thread_frames = _ThreadFrames()


def numbers_for(isa: Isa, size: int) -> FrameNumbers:
    """Return the numbers to use for `size` bytes of code: this thread's, or new ones if those are full or the code is large."""
    if size > MAX_SHARED_CODE:
        return FrameNumbers(isa)
    frames = _thread_frames.frames.get(isa.capstone)
    if frames is None or frames.is_full():
        frames = _thread_frames.frames[isa.capstone] = FrameNumbers(isa)
    return frames


class DecodedCode:
    """A piece of code: the range [start, end), decoded from its first byte. From `code_end` on it only has padding.

    `marks`: a Mark for each byte. `offsets`: where instructions begin. A point is an instruction that touches the stack or the
    flow; its columns are `at` and `ends`: offsets; `effects`: numbers of `frames`; `flows`: its Flow, with DIRECT or SLOT if
    `addresses` has its target or slot. `taken`: addresses that instructions at the offsets `taken_at` put into registers.
    """

    offsets: array[int]
    at: array[int]
    ends: array[int]
    effects: array[int]
    flows: bytearray
    addresses: array[int]
    taken: array[int]
    taken_at: array[int]

    def __init__(self, code: Bytes, start: int, frames: FrameNumbers) -> None:
        self.code = bytes(code)
        self.start = start
        self.end = start + len(code)
        self.frames = frames
        self.marks = bytearray(len(code))
        self._texts: dict[int, list[Instruction]] = {}
        self._targets: set[int] | None = None
        self._decode()
        self._find_padding()

    def cut_at(self, end: int) -> DecodedCode:
        """Return [start, end), where an instruction ends at `end`, as if it had been decoded alone."""
        size = end - self.start
        head = DecodedCode.__new__(DecodedCode)
        head.code, head.marks = self.code[:size], self.marks[:size]
        head.start, head.end = self.start, end
        head.frames = self.frames
        head._texts = {}  # noqa: SLF001 - here and below: `head` is of this class
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
        reader.start_piece()
        columns: list[Any] = []
        here = 0
        while here < size:
            end = min(size, here + CHUNK)
            limit = end if end == size else end - longest  # the last instruction may be cut off
            found: list[Any] = reader.read(self.code, self.start, here, end, limit, self.marks)
            for number, added in enumerate(found if columns else ()):
                columns[number] += added
            columns = columns or found
            if not reader.consumed or len(self.frames.effects) > MAX_EFFECTS:
                break
            here += reader.consumed
        columns = columns or [array("I"), array("I"), array("I"), array("I"), bytearray(), array("Q"), array("Q"), array("I")]
        if here < size:  # the rest is shorter than an instruction, or not code
            self.marks[here] = Mark.BEGIN
            for column, value in zip(columns[:6], (here, here, size, 0, Flow.STOP, 0), strict=True):
                column.append(value)
        self.offsets, self.at, self.ends, self.effects, self.flows, self.addresses, self.taken, self.taken_at = columns
        if self.frames.isa.resolve_register_add and self.frames.lost_sp in self.effects:
            self._resolve_register_adds()

    def _resolve_register_adds(self) -> None:
        """Find the effects of instructions that add to SP a register that earlier instructions set to a constant."""
        resolve = self.frames.isa.resolve_register_add
        for number, effects in enumerate(self.effects):
            if effects == self.frames.lost_sp and resolve:
                last = bisect_left(self.offsets, self.at[number])
                before = [self.instruction(near) for near in range(max(0, last - WINDOW // 2), last + 1)]
                resolved_effects = resolve(before, len(before) - 1)
                if resolved_effects:
                    self.effects[number] = self.frames.effects_number(resolved_effects)

    # -- instructions

    def __len__(self) -> int:
        return len(self.offsets)

    def instruction(self, number: int) -> Instruction:
        """Return one instruction as text. It is disassembled on demand, with a few around it."""
        window, index = divmod(number, WINDOW)
        if window not in self._texts:
            begin = self.offsets[window * WINDOW]
            end = (window + 1) * WINDOW
            code = self.code[begin : self.offsets[end] if end < len(self.offsets) else len(self.code)]
            found = list(make_disassembler(*self.frames.isa.capstone).texts(code, self.start + begin))
            if len(found) < min(WINDOW, len(self.offsets) - window * WINDOW):  # the last bytes are shorter than an instruction
                here = self.offsets[-1]
                found.append((self.start + here, len(self.code) - here, ".byte", ""))
            self._texts[window] = found
        return self._texts[window][index]

    def number_at(self, address: int) -> int:
        """Return the number of the first instruction that begins at or after an address."""
        return bisect_left(self.offsets, address - self.start) if address >= self.start else 0

    def begins(self, address: int) -> bool:
        return self.start <= address < self.end and self.marks[address - self.start] != 0

    def instruction_start(self, address: int) -> int:
        """Return the start of the instruction that contains an address of the piece."""
        while not self.marks[address - self.start]:
            address -= 1
        return address

    def instruction_around(self, address: int) -> tuple[bytes, int]:
        """Return the bytes of the instruction that contains an address of the piece, and the offset of the address in it."""
        begin = self.instruction_start(address)
        number = self.number_at(begin) + 1
        end = self.offsets[number] if number < len(self.offsets) else len(self.code)
        return self.code[begin - self.start : end], address - begin

    def skip_padding(self, address: int) -> int:
        """Return the address of the first instruction at or after `address` that is not padding; the end if there is none."""
        offset = self.marks.find(Mark.BEGIN, address - self.start)
        return self.end if offset < 0 else self.start + offset

    # -- points

    def points(self) -> Iterator[Point]:
        return map(self.point, range(len(self.at)))

    def flow_points(self) -> Iterator[Point]:
        return (self.point(number) for number, flow in enumerate(self.flows) if flow)

    def point_numbers(self, kind: int) -> Iterator[int]:
        """Yield the numbers of the points whose Flow, with its bit DIRECT or SLOT, is `kind`."""
        number = self.flows.find(kind)
        while number >= 0:
            yield number
            number = self.flows.find(kind, number + 1)

    def branch_targets(self) -> set[int]:
        if self._targets is None:
            kinds = (Flow.JUMP | DIRECT, Flow.BRANCH | DIRECT)
            self._targets = {self.addresses[number] for kind in kinds for number in self.point_numbers(kind)}
        return self._targets

    def point(self, number: int) -> Point:
        flow, address = self.flows[number], self.addresses[number]
        return Point(
            self.start + self.at[number], self.start + self.ends[number], self.frames.effects[self.effects[number]],
            FLOWS[flow & FLOW_MASK], address if flow & DIRECT else None, address if flow & SLOT else None,
        )  # fmt: skip


def decode(code: Bytes, start: int, isa: Isa) -> DecodedCode:
    return DecodedCode(code, start, numbers_for(isa, len(code)))


def acts_alike_from(code: bytes, offset: int, isa: Isa) -> bool:
    """Return True if the instruction also does the same when a jump skips its first `offset` bytes, which are a prefix."""
    whole, part = decode(code, 0, isa), decode(code[offset:], 0, isa)
    same = [(point.effects, point.flow) for point in whole.points()] == [(point.effects, point.flow) for point in part.points()]
    return same and not any(whole.flows)
