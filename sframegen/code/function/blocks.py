"""A function's blocks, walked with the numbers of states until none of them changes, and then once more for the rows. Compiled."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if not cython.compiled:
    from bisect import bisect_left, bisect_right
if TYPE_CHECKING:
    from collections.abc import Sequence

    from sframegen.base.columns import Bytes, Column
    from sframegen.code.decoding.numbering import Frames

COMPILED: bool = cython.compiled

MAX_STATES = (
    1 << 12
)  # different ones of a function, or up to twice as many; each is kept, and large real functions have some dozens
STEPS = 1 << 12

# What the last walk notes of a point.
RETURNS, NEVER_RETURNS = 1, 2  # a call
GOES_ON, IS_LAST = 4, 8  # a call that is reached, and whether the code of its piece ends with it
UNRESOLVED = 16  # an indirect jump that is reached


class Asked(Protocol):
    """Who knows what the columns do not say."""

    known_targets: dict[int, bool]  # what `returns` has said already, by target
    known_slots: dict[int, bool]  # and by slot

    def returns(self, point: int, target: int | None, slot: int | None) -> bool:
        """True if a call may come back."""

    def table(self, point: int) -> Sequence[int]:
        """Where an indirect jump leads, if all of it is known."""

    def alike(self, address: int) -> bool:
        """True if the instruction that it is inside of does the same from there on."""


class Points(NamedTuple):
    """The instructions of a function that matter, and for all of its bytes the marks: columns as in pieces.py."""

    marks: Bytes
    at: Column
    ends: Column
    effects: Column
    flows: Bytes
    addresses: Column


class BasicBlocks:
    """The blocks of one function after the other. Its pieces lie side by side: places are offsets into that.

    After `run`: rows by columns (places, number of the state), `rows` of them, ascending; exits as (source, target, state); what is
    noted of each point; `returns`; `contradiction`: the place of an instruction, or -1. blocks.pxd has the types.
    """

    def __init__(self) -> None:
        """What stays from function to function; `begin` has the rest."""
        self.moved: dict[int, int] = {}
        self.step_state, self.step_effects, self.step_after = (array("I", bytes(4 * STEPS)) for _ in range(3))
        self.starts = array("Q", [0])
        self.bases = array("I", [0, 0])
        self.code_ends = array("I", [0])
        self.leads = bytearray(1)
        self.state_of = array("i", [0])
        self.walked_with = array("i", [0])
        self.notes = bytearray(1)
        self.row_start, self.row_end, self.row_state = (array("I", [0]) for _ in range(3))

    def begin(self, asked: Asked, frames: Frames, points: Points, steps: int) -> None:
        """Another function, whose pieces follow. `steps`: the points that may be walked."""
        number: cython.Py_ssize_t
        self.asked: Any = asked
        self.frames: Any = frames
        if frames.moved is not self.moved:
            self.moved = frames.moved
            for number in range(4096):  # STEPS
                self.step_effects[number] = 0
        self.met = frames.met
        self.called = frames.called
        self.facts = frames.facts
        self.known_targets = asked.known_targets
        self.known_slots = asked.known_slots
        self.marks, self.at, self.ends, self.effects, self.flows, self.addresses = points
        self.pieces = self.piece = self.rows = 0
        self.points = len(self.at)
        self.size = len(self.marks)
        if self.size >= len(self.leads):
            self.leads = bytearray(self.size + 1)
            self.state_of = array("i", bytes(4 * self.size))
            self.walked_with = array("i", bytes(4 * self.size))
        for number in range(self.size):
            self.leads[number] = 0
            self.state_of[number] = 0
            self.walked_with[number] = 0
        self.leads[self.size] = 0
        if self.points > len(self.notes):
            self.notes = bytearray(self.points)
        for number in range(self.points):
            self.notes[number] = 0
        self.nothing = frames.nothing
        self.emits = self.returns = False
        self.ascend = True
        self.work: list[int] = []
        self.different: set[int] = set()
        self.exits: list[tuple[int, int, int]] = []
        self.steps = steps
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

    def end(self) -> None:
        """Let go of the function."""
        self.asked = self.frames = None

    # -- places

    def place(self, address: cython.ulonglong) -> cython.Py_ssize_t:
        """The place of an address; -1 where it is not the function's. `piece`: in which it is, if in one."""
        piece: cython.Py_ssize_t = self.piece
        if not self.is_in(piece, address):
            piece = bisect_right(self.starts, address, 0, self.pieces) - 1
            if piece < 0 or not self.is_in(piece, address):
                return -1
            self.piece = piece
        return address - self.starts[piece] + self.bases[piece]

    def is_in(self, piece: cython.Py_ssize_t, address: cython.ulonglong) -> cython.int:
        return self.starts[piece] <= address and address - self.starts[piece] < self.bases[piece + 1] - self.bases[piece]

    def begin_of(self, place: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """The instruction that a place is in."""
        while place > 0 and self.marks[place] == 0:
            place -= 1
        return place

    def piece_of(self, place: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """The number of the piece."""
        return bisect_right(self.bases, place, 0, self.pieces) - 1

    def address_of(self, place: cython.Py_ssize_t) -> cython.ulonglong:
        """The address of a place."""
        piece: cython.Py_ssize_t = self.piece_of(place)
        return place - self.bases[piece] + self.starts[piece]

    def reach_of(self, point: int) -> tuple[int, int]:
        """Return the addresses where the instruction of a point begins, and where it ends."""
        here: int = self.address_of(self.at[point])
        return here, here + self.ends[point] - self.at[point]

    # -- where blocks begin

    def lead(self, address: cython.ulonglong, exact: cython.bint) -> cython.Py_ssize_t:
        place: cython.Py_ssize_t = self.place(address)
        if place >= 0:
            self.leads[place if exact else self.begin_of(place)] = 1
        return place

    def lead_at(self, address: int) -> None:
        """A block begins at the address, if it is the function's."""
        self.lead(address, True)

    def find_leaders(self) -> None:
        """Blocks begin where jumps and calls lead, and after branches."""
        point: cython.Py_ssize_t
        piece: cython.Py_ssize_t = 0
        for point in range(self.points):
            if self.flows[point] & 8:  # DIRECT
                self.lead(self.addresses[point], False)
            if self.flows[point] & 7 == 2:  # BRANCH
                while self.bases[piece + 1] <= self.at[point]:
                    piece += 1
                self.lead(self.ends[point] - self.bases[piece] + self.starts[piece], True)

    # -- the walk

    def enter(self, address: int, state: int) -> None:
        """The function may be entered there."""
        self.reach(address, address, state)

    def run(self) -> bool:
        """True if there were steps enough."""
        leader: cython.Py_ssize_t
        while self.work:
            leader = self.work.pop()
            if self.walked_with[leader] != self.state_of[leader]:
                self.walked_with[leader] = self.state_of[leader]
                self.block(leader)
                if self.steps < 0:
                    self.contradiction = leader
                    return False
        self.emits = True
        for leader in range(self.size):
            if self.walked_with[leader]:
                self.block(leader)
        if not self.ascend:
            self.sort_rows()
        return True

    def reach(self, source: cython.ulonglong, target: cython.ulonglong, state: cython.Py_ssize_t) -> cython.int:
        """Control may get there with the state."""
        place: cython.Py_ssize_t = self.place(target)
        begin: cython.Py_ssize_t
        known: cython.Py_ssize_t
        self.steps -= 1
        if place < 0:
            if self.emits:
                self.exits.append((source, target, state))
            return 0
        if self.emits:
            return 0
        begin = self.begin_of(place)
        if begin != place and not self.asked.alike(target):  # instructions overlap
            state = self.nothing
        known = self.state_of[begin] - 1  # 0: not reached
        if known >= 0 and known != state:
            found = self.met.get((known << 32) | state)
            state = self.frames.join(known, state) if found is None else found
            self.change(state)
        if state != known:
            self.state_of[begin] = state + 1
            self.work.append(begin)
        return 0

    def change(self, state: cython.Py_ssize_t) -> cython.int:
        """Another state than before. There are no steps left when too many of these are different."""
        self.changes += 1
        if self.changes > 4096:  # MAX_STATES; until then they cannot be too many
            self.different.add(state)
            if len(self.different) > 4096:  # MAX_STATES
                self.steps = -1
        return 0

    def row(self, start: cython.Py_ssize_t, end: cython.Py_ssize_t, state: cython.Py_ssize_t) -> cython.int:
        if self.emits and start < end:
            if start <= self.last_row:  # instructions overlap
                self.ascend = False
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
        """Order the rows by their places."""
        number: cython.Py_ssize_t
        rows = [(self.row_start[number], self.row_end[number], self.row_state[number]) for number in range(self.rows)]
        rows.sort(key=lambda row: row[:2])
        for number in range(self.rows):
            self.row_start[number], self.row_end[number], self.row_state[number] = rows[number]
        return 0

    def first_point(self, place: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """At a place or after."""
        return bisect_left(self.at, place, 0, self.points)

    def block(self, leader: cython.Py_ssize_t) -> cython.int:
        """From a leader to the next, or to where control goes elsewhere."""
        state: cython.Py_ssize_t = self.state_of[leader] - 1
        before: cython.Py_ssize_t
        piece: cython.Py_ssize_t = self.piece_of(leader)
        behind: cython.Py_ssize_t = self.bases[piece + 1]
        shift: cython.ulonglong = self.starts[piece]
        base: cython.Py_ssize_t = self.bases[piece]
        limit: cython.Py_ssize_t = self.next_leader(leader + 1, behind)
        point: cython.Py_ssize_t = self.first_point(leader)
        begin: cython.Py_ssize_t = leader
        end: cython.Py_ssize_t
        flow: cython.int
        while point < self.points and self.at[point] < limit and self.steps >= 0:
            self.steps -= 1
            end = self.ends[point]
            before = state
            if self.effects[point]:
                state = self.after(state, self.effects[point])
                if state != before:
                    self.change(state)
                    self.row(begin, end, before)
                    begin = end
            flow = self.flows[point] & 7
            if flow == 4:  # CALL
                before = state
                state = self.call(point, piece, state)
                if state != before:
                    self.row(begin, end, before)
                    begin = end
                if state < 0:
                    return 0
            elif flow:
                self.row(begin, end, state)
                return self.leave(point, flow, self.at[point] - base + shift, end - base + shift, state)
            point += 1
        self.row(begin, limit, state)
        if limit == behind:
            self.returns = True
        return self.reach(limit - base + shift, limit - base + shift, state)

    def next_leader(self, place: cython.Py_ssize_t, limit: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """The first place from one on where a block begins; the limit if none is before it."""
        if not cython.compiled:
            found = self.leads.find(1, place, limit)
            return limit if found < 0 else found
        while place < limit and not self.leads[place]:
            place += 1
        return place

    def after(self, state: cython.Py_ssize_t, effects: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """The state after effects, which are not 0. The last steps are at hand without a look-up in a dictionary."""
        place: cython.Py_ssize_t = (state * 61 + effects) & 4095  # STEPS
        if self.step_effects[place] != effects or self.step_state[place] != state:
            found = self.moved.get((state << 32) | effects)
            self.step_after[place] = self.frames.after(state, effects) if found is None else found
            self.step_state[place] = state
            self.step_effects[place] = effects
        return self.step_after[place]

    def call(self, point: cython.Py_ssize_t, piece: cython.Py_ssize_t, state: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """The state after a call; -1 where nothing is."""
        place: cython.Py_ssize_t
        if not self.notes[point]:
            self.notes[point] = 1 if self.comes_back(point) else 2  # RETURNS, NEVER_RETURNS
        if self.emits:
            self.notes[point] |= 8 if self.notes[point] & 1 and self.ends[point] >= self.code_ends[piece] else 4  # IS_LAST, GOES_ON
        if self.notes[point] & 2 or self.ends[point] >= self.code_ends[piece]:  # NEVER_RETURNS
            return -1
        if self.flows[point] & 8 and not self.emits:  # DIRECT
            place = self.place(self.addresses[point])
            if place >= 0 and place != self.bases[self.piece]:
                self.reach(self.addresses[point], self.addresses[point], self.nothing)
        found = self.called.get(state)
        return self.frames.after_call(state) if found is None else found

    def comes_back(self, point: cython.Py_ssize_t) -> cython.bint:
        """True if a call may return."""
        address: int = self.addresses[point]
        target = address if self.flows[point] & 8 else None  # DIRECT
        slot = address if self.flows[point] & 16 else None  # SLOT
        known = None
        if target is not None:
            known = self.known_targets.get(target)
        elif slot is not None:
            known = self.known_slots.get(slot)
        return bool(self.asked.returns(point, target, slot) if known is None else known)

    def leave(
        self, point: cython.Py_ssize_t, flow: cython.int, here: cython.ulonglong, end: cython.ulonglong, state: cython.Py_ssize_t
    ) -> cython.int:
        if flow == 1 or flow == 2:  # JUMP, BRANCH
            if self.flows[point] & 8:  # DIRECT
                self.reach(here, self.addresses[point], state)
            if flow == 2:
                self.reach(here, end, state)
        elif flow == 3:  # INDIRECT
            targets = self.asked.table(point)
            for target in targets:
                self.reach(here, target, state)
            if self.emits and not targets:
                self.notes[point] = 16  # UNRESOLVED
        elif flow == 5:  # RETURN
            self.returns = True
            if self.emits and self.facts_of(state) & 64:  # CONTRADICTS
                self.contradiction = self.at[point]
        return 0

    def facts_of(self, state: cython.Py_ssize_t) -> cython.int:
        """What is asked most about a state, in bits as `Frames.facts_of` has them."""
        found = self.facts.get(state)
        return self.frames.facts_of(state) if found is None else found
