"""Walks the basic blocks of a function until no frame state changes, and once more to emit the rows. Compiled.

A block begins at a leader: the target of a jump or call, or the instruction after a branch. A worklist has the leaders whose state
has changed. To walk a block is to apply the effects of its points (instructions that touch the stack or the flow of control) to
that state, and to join the result into the states of the blocks that control gets to from there. States and effects are numbers
of a FrameNumbers (decoded_code.py), whose caches are asked first.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if not cython.compiled:
    from bisect import bisect_left, bisect_right

    from sframegen.code.function.marks import IS_CALLED, IS_LAST, MAY_RETURN, NEVER_RETURNS, UNRESOLVED
    from sframegen.code.isa.effects import BRANCH, CALL, CONTRADICTION, DIRECT, FLOW_MASK, INDIRECT, INSIDE, JUMP, RETURN, SLOT
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sframegen.base.columns import Bytes, Column
    from sframegen.code.decoding.decoded_code import FrameNumbers

MAX_STATES = 1 << 12  # distinct ones of a function, or up to twice as many: each is kept, and large functions have some dozens
CACHED_STEPS = 1 << 12  # steps from state to state that a small cache holds


class FunctionCode(NamedTuple):
    """The code of a function, whose pieces lie side by side; offsets count through all of them. Columns as in decoded_code.py."""

    marks: Bytes
    at: Column
    ends: Column
    effects: Column
    flows: Bytes
    addresses: Column


class BasicBlocks:
    """The blocks of one function after the other. All share these columns, because to make new ones takes longer than most walks.

    `walk` fills `rows` rows (start and end offset, number of the state), ascending; exits as (source, target, state); the
    PointNotes of each point; `returns`; `contradiction`: the offset of an instruction, or -1; `complete`: False if the steps ran
    out. By offset of a leader, `state_of` and `walked_with` have 1 + the number of the state that it has now, and of the one with
    which it was walked last; 0: none. blocks.pxd has the types.
    """

    def __init__(self) -> None:
        """Makes the columns that stay from function to function; `start_function` sets the others."""
        self.after_effects: dict[int, int] = {}
        self.step_state, self.step_effects, self.step_after = (array("I", bytes(4 * CACHED_STEPS)) for _ in range(3))
        self.starts = array("Q", [0])
        self.bases = array("I", [0, 0])
        self.code_ends = array("I", [0])
        self.is_leader = bytearray(1)
        self.state_of = array("i", [0])
        self.walked_with = array("i", [0])
        self.notes = bytearray(1)
        self.row_start, self.row_end, self.row_state = (array("I", [0]) for _ in range(3))

    def start_function(
        self, code: FunctionCode, frames: FrameNumbers, known_returns: dict[int, bool], call_returns: Callable[[int], bool],
        acts_alike: Callable[[int], bool], tables: dict[int, Sequence[int]], steps: int,
    ) -> None:  # fmt: skip
        """Starts another function; `add_piece` adds its pieces. `steps`: the points that may be walked.

        `known_returns`: whether calls may return, by target or ~slot, as far as that is known; `call_returns` decides it for the
        call at a point. `acts_alike`: true if the instruction around an address does the same from there on. `tables`: the targets
        of indirect jumps, by point, if all are known.
        """
        number: cython.Py_ssize_t
        self.known_returns, self.tables = known_returns, tables
        self.call_returns: Any = call_returns
        self.acts_alike: Any = acts_alike
        self.frames: Any = frames
        if frames.after_effects is not self.after_effects:
            for number in range(4096):  # CACHED_STEPS
                self.step_effects[number] = 0
        self.after_effects, self.after_calls = frames.after_effects, frames.after_calls
        self.joined, self.facts = frames.joined, frames.facts
        self.unknown_state = frames.unknown_state
        self.marks, self.at, self.ends, self.effects, self.flows, self.addresses = code
        self.pieces = self.piece = self.rows = 0
        self.points, self.size = len(self.at), len(self.marks)
        if self.size >= len(self.is_leader):
            self.is_leader = bytearray(self.size + 1)
            self.state_of = array("i", bytes(4 * self.size))
            self.walked_with = array("i", bytes(4 * self.size))
        for number in range(self.size):
            self.is_leader[number] = 0
            self.state_of[number] = 0
            self.walked_with[number] = 0
        self.is_leader[self.size] = 0
        if self.points > len(self.notes):
            self.notes = bytearray(self.points)
        for number in range(self.points):
            self.notes[number] = 0
        self.emits_rows = self.returns = self.complete = False
        self.rows_ascend = True
        self.worklist: list[int] = []
        self.distinct_states: set[int] = set()
        self.exits: list[tuple[int, int, int]] = []
        self.steps_left = steps
        self.changes = 0
        self.last_row = self.contradiction = -1

    def add_piece(self, start: cython.ulonglong, size: cython.Py_ssize_t, code_size: cython.Py_ssize_t) -> None:
        """Add a piece; after `code_size` bytes it has only padding."""
        base: cython.Py_ssize_t = self.bases[self.pieces] if self.pieces else 0
        if self.pieces == len(self.starts):
            self.starts = array("Q", self.starts) * 2
            self.code_ends = array("I", self.code_ends) * 2
            self.bases = array("I", self.bases) * 2
        self.starts[self.pieces] = start
        self.bases[self.pieces] = base
        self.code_ends[self.pieces] = base + code_size
        self.pieces += 1
        self.bases[self.pieces] = base + size

    def drop_references(self) -> None:
        self.call_returns = self.acts_alike = self.frames = None

    # -- offsets and addresses

    def offset_of(self, address: cython.ulonglong) -> cython.Py_ssize_t:
        """Returns the offset of an address, or -1 outside of the function. Sets `self.piece` to the piece that contains it."""
        piece: cython.Py_ssize_t = self.piece
        if not self.is_in(piece, address):
            piece = bisect_right(self.starts, address, 0, self.pieces) - 1
            if piece < 0 or not self.is_in(piece, address):
                return -1
            self.piece = piece
        return address - self.starts[piece] + self.bases[piece]

    def is_in(self, piece: cython.Py_ssize_t, address: cython.ulonglong) -> cython.int:
        return self.starts[piece] <= address and address - self.starts[piece] < self.bases[piece + 1] - self.bases[piece]

    def instruction_start(self, offset: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Returns the offset where the instruction around an offset begins."""
        while offset > 0 and self.marks[offset] == INSIDE:
            offset -= 1
        return offset

    def piece_at(self, offset: cython.Py_ssize_t) -> cython.Py_ssize_t:
        return bisect_right(self.bases, offset, 0, self.pieces) - 1

    def address_of(self, offset: cython.Py_ssize_t) -> cython.ulonglong:
        piece: cython.Py_ssize_t = self.piece_at(offset)
        return offset - self.bases[piece] + self.starts[piece]

    def address_range_of(self, point: int) -> tuple[int, int]:
        """Returns the addresses of the instruction at a point, and after it."""
        here: int = self.address_of(self.at[point])
        return here, here + self.ends[point] - self.at[point]

    # -- where blocks begin

    def mark_leader(self, address: cython.ulonglong, exact: cython.bint) -> cython.Py_ssize_t:
        """Marks that a block begins at an address of the function; unless `exact`, at the instruction around it."""
        offset: cython.Py_ssize_t = self.offset_of(address)
        if offset >= 0:
            self.is_leader[offset if exact else self.instruction_start(offset)] = 1
        return offset

    def find_leaders(self) -> None:
        """Marks where blocks begin: at targets of jumps and calls, and after branches."""
        point: cython.Py_ssize_t
        piece: cython.Py_ssize_t = 0
        for point in range(self.points):
            if self.flows[point] & DIRECT:
                self.mark_leader(self.addresses[point], False)  # the target may be inside an instruction
            if self.flows[point] & FLOW_MASK == BRANCH:
                while self.bases[piece + 1] <= self.at[point]:
                    piece += 1
                self.mark_leader(self.ends[point] - self.bases[piece] + self.starts[piece], True)

    # -- the walk

    def walk(self) -> None:
        """Walks blocks until no state changes, then each once more to emit rows, exits and notes."""
        leader: cython.Py_ssize_t
        while self.worklist:
            leader = self.worklist.pop()
            if self.walked_with[leader] != self.state_of[leader]:
                self.walked_with[leader] = self.state_of[leader]
                self.walk_block(leader)
                if self.steps_left < 0:
                    self.contradiction = leader
                    return
        self.emits_rows = True
        for leader in range(self.size):
            if self.walked_with[leader]:
                self.walk_block(leader)
        if not self.rows_ascend:
            self.sort_rows()
        self.complete = True

    def propagate_state(self, source: cython.ulonglong, target: cython.ulonglong, state: cython.Py_ssize_t) -> cython.int:
        """Joins the state into that of the block at `target`, because control may get there from `source`."""
        offset: cython.Py_ssize_t = self.offset_of(target)
        begin: cython.Py_ssize_t
        known: cython.Py_ssize_t
        self.steps_left -= 1
        if offset < 0:
            if self.emits_rows:
                self.exits.append((source, target, state))
            return 0
        if self.emits_rows:
            return 0
        begin = self.instruction_start(offset)
        if begin != offset and not self.acts_alike(target):  # instructions overlap
            state = self.unknown_state
        known = self.state_of[begin] - 1  # -1: not reached yet
        if known >= 0 and known != state:
            found = self.joined.get((known << 32) | state)
            state = self.frames.join_states(known, state) if found is None else found
            self.count_change(state)
        if state != known:
            self.state_of[begin] = state + 1
            self.worklist.append(begin)
        return 0

    def count_change(self, state: cython.Py_ssize_t) -> cython.int:
        """Counts a changed state. Too many distinct states end the walk."""
        self.changes += 1
        if self.changes > 4096:  # MAX_STATES; fewer changes cannot make more distinct states
            self.distinct_states.add(state)
            if len(self.distinct_states) > 4096:  # MAX_STATES
                self.steps_left = -1
        return 0

    def add_row(self, start: cython.Py_ssize_t, end: cython.Py_ssize_t, state: cython.Py_ssize_t) -> cython.int:
        """Adds a row, unless it is empty or the walk only looks for states."""
        if self.emits_rows and start < end:
            if start <= self.last_row:  # instructions overlap
                self.rows_ascend = False
            self.last_row = start
            if self.rows == len(self.row_start):
                self.row_start = array("I", self.row_start) * 2
                self.row_end = array("I", self.row_end) * 2
                self.row_state = array("I", self.row_state) * 2
            self.row_start[self.rows] = start
            self.row_end[self.rows] = end
            self.row_state[self.rows] = state
            self.rows += 1
        return 0

    def sort_rows(self) -> cython.int:
        number: cython.Py_ssize_t
        rows = [(self.row_start[number], self.row_end[number], self.row_state[number]) for number in range(self.rows)]
        rows.sort(key=lambda row: row[:2])
        for number in range(self.rows):
            self.row_start[number], self.row_end[number], self.row_state[number] = rows[number]
        return 0

    def walk_block(self, leader: cython.Py_ssize_t) -> cython.int:
        """Walks from the start of a block to the next one, or to the instruction that leaves the block."""
        state: cython.Py_ssize_t = self.state_of[leader] - 1
        before: cython.Py_ssize_t
        piece: cython.Py_ssize_t = self.piece_at(leader)
        piece_end: cython.Py_ssize_t = self.bases[piece + 1]
        shift: cython.ulonglong = self.starts[piece]
        base: cython.Py_ssize_t = self.bases[piece]
        limit: cython.Py_ssize_t = self.next_leader(leader + 1, piece_end)
        point: cython.Py_ssize_t = bisect_left(self.at, leader, 0, self.points)
        begin: cython.Py_ssize_t = leader
        end: cython.Py_ssize_t
        flow: cython.int
        while point < self.points and self.at[point] < limit and self.steps_left >= 0:
            self.steps_left -= 1
            end = self.ends[point]
            before = state
            if self.effects[point]:
                state = self.state_after(state, self.effects[point])
                if state != before:
                    self.count_change(state)
                    self.add_row(begin, end, before)
                    begin = end
            flow = self.flows[point] & FLOW_MASK
            if flow == CALL:
                before = state
                state = self.walk_call(point, piece, state)
                if state != before:
                    self.add_row(begin, end, before)
                    begin = end
                if state < 0:
                    return 0
            elif flow:
                self.add_row(begin, end, state)
                return self.leave_block(point, flow, self.at[point] - base + shift, end - base + shift, state)
            point += 1
        self.add_row(begin, limit, state)
        if limit == piece_end:
            self.returns = True
        return self.propagate_state(limit - base + shift, limit - base + shift, state)

    def next_leader(self, offset: cython.Py_ssize_t, limit: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Returns the first offset from `offset` on where a block begins; at most the limit."""
        if not cython.compiled:
            found = self.is_leader.find(1, offset, limit)
            return limit if found < 0 else found
        while offset < limit and not self.is_leader[offset]:
            offset += 1
        return offset

    def state_after(self, state: cython.Py_ssize_t, effects: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Returns the state after effects, whose number is not 0. A small cache finds recent steps without a dictionary."""
        slot: cython.Py_ssize_t = (state * 61 + effects) & 4095  # CACHED_STEPS
        if self.step_effects[slot] != effects or self.step_state[slot] != state:
            found = self.after_effects.get((state << 32) | effects)
            self.step_after[slot] = self.frames.apply_effects(state, effects) if found is None else found
            self.step_state[slot] = state
            self.step_effects[slot] = effects
        return self.step_after[slot]

    def walk_call(self, point: cython.Py_ssize_t, piece: cython.Py_ssize_t, state: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Returns the state after a call; -1 if the call does not return."""
        offset: cython.Py_ssize_t
        is_last: cython.bint
        if not self.notes[point]:
            self.notes[point] = MAY_RETURN if self.may_return(point) else NEVER_RETURNS
        is_last = self.ends[point] >= self.code_ends[piece]
        if self.emits_rows:
            self.notes[point] |= IS_LAST if is_last and self.notes[point] & MAY_RETURN else IS_CALLED
        if is_last or self.notes[point] & NEVER_RETURNS:
            return -1
        if self.flows[point] & DIRECT and not self.emits_rows:
            offset = self.offset_of(self.addresses[point])
            # A call into the middle of the function enters it with an unknown frame. `offset_of` has set `piece`.
            if offset >= 0 and offset != self.bases[self.piece]:
                self.propagate_state(self.addresses[point], self.addresses[point], self.unknown_state)
        found = self.after_calls.get(state)
        return self.frames.apply_call(state) if found is None else found

    def may_return(self, point: cython.Py_ssize_t) -> cython.bint:
        """Returns True if the call at a point may return: a known answer, or that of `call_returns`."""
        known: object = None
        address: int = self.addresses[point]
        if self.flows[point] & (DIRECT | SLOT):
            known = self.known_returns.get(address if self.flows[point] & DIRECT else ~address)
        return bool(self.call_returns(point) if known is None else known)

    def leave_block(
        self, point: cython.Py_ssize_t, flow: cython.int, here: cython.ulonglong, end: cython.ulonglong, state: cython.Py_ssize_t
    ) -> cython.int:
        """Propagates the state to all targets of the point at [here, end), which ends a block."""
        if flow in (JUMP, BRANCH):
            if self.flows[point] & DIRECT:
                self.propagate_state(here, self.addresses[point], state)
            if flow == BRANCH:
                self.propagate_state(here, end, state)
        elif flow == INDIRECT:
            targets = self.tables.get(point, ())
            for target in targets:
                self.propagate_state(here, target, state)
            if self.emits_rows and not targets:
                self.notes[point] = UNRESOLVED
        elif flow == RETURN:
            self.returns = True
            if self.emits_rows and self.facts_of(state) & CONTRADICTION:
                self.contradiction = self.at[point]
        return 0

    def facts_of(self, state: cython.Py_ssize_t) -> cython.int:
        found = self.facts.get(state)
        return self.frames.compute_facts(state) if found is None else found
