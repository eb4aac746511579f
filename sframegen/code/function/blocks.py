"""A function's blocks, walked with the numbers of states until none of them changes, and then once more for the rows. Compiled."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple, Protocol

try:
    import cython
except ImportError:
    from cfi import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi.columns import Bytes, Column
    from sframegen.code.decoding.numbering import Frames

COMPILED: bool = cython.compiled

MAX_STATES = (
    1 << 12
)  # different ones of a function, or up to twice as many; each is kept, and large real functions have some dozens


class Asked(Protocol):
    """Who knows what the columns do not say."""

    known_calls: dict[int, bool]  # what `returns` has said already, by target

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


class Places(NamedTuple):
    """The pieces of a function: addresses, places (`bases`, with the end of the last), and where the padding of each begins."""

    starts: Column
    bases: Column
    code_ends: Column


@cython.final
@cython.cclass
class Blocks:
    """The blocks of one function, whose pieces lie one after the other: places are offsets into that.

    After `run`: rows by columns (places, number of the state), and whether they `ascend`; exits as (source, target, state); calls
    as (target, slot); unresolved jumps as numbers of points; `returns`; `contradiction`: the place of an instruction, or -1.
    """

    asked = cython.declare("object")
    frames = cython.declare("object")
    moved = cython.declare("dict")
    met = cython.declare("dict")
    called = cython.declare("dict")
    known_calls = cython.declare("dict")
    marks = cython.declare("const unsigned char[::1]")
    at = cython.declare("const unsigned int[::1]")
    ends = cython.declare("const unsigned int[::1]")
    effects = cython.declare("const unsigned int[::1]")
    flows = cython.declare("const unsigned char[::1]")
    addresses = cython.declare("const unsigned long long[::1]")
    starts = cython.declare("const unsigned long long[::1]")
    bases = cython.declare("const unsigned int[::1]")
    code_ends = cython.declare("const unsigned int[::1]")
    leads = cython.declare("bytearray")
    state_of = cython.declare("int[::1]")
    walked_with = cython.declare("int[::1]")
    answers = cython.declare("unsigned char[::1]")
    pieces = cython.declare("long long")
    piece = cython.declare("long long")
    points = cython.declare("long long")
    nothing = cython.declare("long long")
    emits = cython.declare("bint")
    work = cython.declare("list")
    reached = cython.declare("list")
    steps = cython.declare("long long", visibility="public")
    changes = cython.declare("long long")
    different = cython.declare("set")
    row_start = cython.declare("list", visibility="public")
    row_end = cython.declare("list", visibility="public")
    row_state = cython.declare("list", visibility="public")
    exits = cython.declare("list", visibility="public")
    calls = cython.declare("list", visibility="public")
    last_calls = cython.declare("list", visibility="public")
    jumps = cython.declare("list", visibility="public")
    ascend = cython.declare("bint", visibility="public")
    last_row = cython.declare("long long")
    returns = cython.declare("bint", visibility="public")
    contradiction = cython.declare("long long", visibility="public")

    def __init__(self, asked: Asked, frames: Frames, points: Points, places: Places, steps: int) -> None:
        """`steps`: the points that may be walked."""
        size: cython.Py_ssize_t = len(points.marks)
        self.asked = asked
        self.frames = frames
        self.moved = frames.moved
        self.met = frames.met
        self.called = frames.called
        self.known_calls = asked.known_calls
        self.marks = points.marks
        self.at = points.at
        self.ends = points.ends
        self.effects = points.effects
        self.flows = points.flows
        self.addresses = points.addresses
        self.starts = places.starts
        self.bases = places.bases
        self.code_ends = places.code_ends
        self.leads = bytearray(size + 1)
        self.state_of = array("i", bytes(4 * size))
        self.walked_with = array("i", bytes(4 * size))
        self.answers = bytearray(len(points.at))
        self.pieces = len(places.starts)
        self.piece = 0
        self.points = len(points.at)
        self.nothing = frames.nothing
        self.emits = False
        self.work = []
        self.reached = []
        self.steps = steps
        self.changes = 0
        self.different = set()
        self.row_start, self.row_end, self.row_state = [], [], []
        self.exits, self.calls, self.last_calls, self.jumps = [], [], [], []
        self.ascend = True
        self.last_row = -1
        self.returns = False
        self.contradiction = -1

    # -- places

    @cython.cfunc
    @cython.exceptval(-2)
    def place(self, address: cython.ulonglong) -> cython.longlong:
        """The place of an address; -1 where it is not the function's. `piece`: in which it is, if in one."""
        low: cython.longlong = self.piece
        high: cython.longlong = self.pieces
        middle: cython.longlong
        if not self.is_in(low, address):
            low = 0
            while low < high:
                middle = (low + high) // 2
                if self.starts[middle] <= address:
                    low = middle + 1
                else:
                    high = middle
            low -= 1
            if low < 0 or not self.is_in(low, address):
                return -1
            self.piece = low
        return address - self.starts[low] + self.bases[low]  # type: ignore[no-any-return]

    @cython.cfunc
    @cython.exceptval(-1)
    def is_in(self, piece: cython.longlong, address: cython.ulonglong) -> cython.int:
        return (  # type: ignore[no-any-return]
            self.starts[piece] <= address and address - self.starts[piece] < self.bases[piece + 1] - self.bases[piece]
        )

    @cython.cfunc
    @cython.exceptval(-2)
    def begin(self, place: cython.longlong) -> cython.longlong:
        """The instruction that a place is in."""
        while place > 0 and self.marks[place] == 0:
            place -= 1
        return place

    @cython.cfunc
    @cython.exceptval(-2)
    def piece_of(self, place: cython.longlong) -> cython.longlong:
        """The number of the piece."""
        low: cython.longlong = 0
        high: cython.longlong = self.pieces
        middle: cython.longlong
        if self.pieces == 1:
            return 0
        while low < high:
            middle = (low + high) // 2
            if self.bases[middle] <= place:
                low = middle + 1
            else:
                high = middle
        return low - 1

    # -- where blocks begin

    @cython.cfunc
    @cython.exceptval(-2)
    def lead(self, address: cython.ulonglong, exact: cython.bint) -> cython.longlong:
        place: cython.longlong = self.place(address)
        if place >= 0:
            self.leads[place if exact else self.begin(place)] = 1
        return place

    def lead_at(self, address: int) -> None:
        """A block begins at the address, if it is the function's."""
        self.lead(address, True)

    def find_leaders(self) -> None:
        """Blocks begin where jumps and calls lead, and after branches."""
        point: cython.Py_ssize_t
        piece: cython.longlong = 0
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
        leader: cython.longlong
        while self.work:
            leader = self.work.pop()
            if self.walked_with[leader] != self.state_of[leader]:
                if not self.walked_with[leader]:
                    self.reached.append(leader)
                self.walked_with[leader] = self.state_of[leader]
                self.block(leader)
                if self.steps < 0:
                    self.contradiction = leader
                    return False
        self.emits = True
        self.exits = []  # of entries
        self.reached.sort()
        for leader in self.reached:
            self.block(leader)
        return True

    @cython.cfunc
    @cython.exceptval(-1)
    def reach(self, source: cython.ulonglong, target: cython.ulonglong, state: cython.longlong) -> cython.int:
        """Control may get there with the state."""
        place: cython.longlong = self.place(target)
        begin: cython.longlong
        known: cython.longlong
        self.steps -= 1
        if place < 0:
            if self.emits:
                self.exits.append((source, target, state))
            return 0
        if self.emits:
            return 0
        begin = self.begin(place)
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

    @cython.cfunc
    @cython.exceptval(-1)
    def change(self, state: cython.longlong) -> cython.int:
        """Another state than before. There are no steps left when too many of these are different."""
        self.changes += 1
        if self.changes > 4096:  # MAX_STATES; until then they cannot be too many
            self.different.add(state)
            if len(self.different) > 4096:  # MAX_STATES
                self.steps = -1
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def row(self, start: cython.longlong, end: cython.longlong, state: cython.longlong) -> cython.int:
        if self.emits and start < end:
            if start <= self.last_row:  # instructions overlap
                self.ascend = False
            self.last_row = start
            self.row_start.append(start)
            self.row_end.append(end)
            self.row_state.append(state)
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def first_point(self, place: cython.longlong) -> cython.longlong:
        """At a place or after."""
        low: cython.longlong = 0
        high: cython.longlong = self.points
        middle: cython.longlong
        while low < high:
            middle = (low + high) // 2
            if self.at[middle] < place:
                low = middle + 1
            else:
                high = middle
        return low

    @cython.cfunc
    @cython.exceptval(-1)
    def block(self, leader: cython.longlong) -> cython.int:
        """From a leader to the next, or to where control goes elsewhere."""
        state: cython.longlong = self.state_of[leader] - 1
        before: cython.longlong
        piece: cython.longlong = self.piece_of(leader)
        behind: cython.longlong = self.bases[piece + 1]
        shift: cython.ulonglong = self.starts[piece]
        base: cython.longlong = self.bases[piece]
        limit: cython.longlong = self.leads.find(1, leader + 1, behind)
        point: cython.longlong = self.first_point(leader)
        begin: cython.longlong = leader
        end: cython.longlong
        flow: cython.int
        if limit < 0:
            limit = behind
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

    @cython.cfunc
    @cython.exceptval(-1)
    def after(self, state: cython.longlong, effects: cython.longlong) -> cython.longlong:
        found = self.moved.get((state << 32) | effects)
        return self.frames.after(state, effects) if found is None else found  # type: ignore[no-any-return]

    @cython.cfunc
    @cython.exceptval(-2)
    def call(self, point: cython.longlong, piece: cython.longlong, state: cython.longlong) -> cython.longlong:
        """The state after a call; -1 where nothing is."""
        place: cython.longlong
        if self.emits:
            self.calls.append(self.callee(point))
        if not self.answers[point]:
            known = self.known_calls.get(self.addresses[point]) if self.flows[point] & 8 else None  # DIRECT
            if known is None:
                known = self.asked.returns(point, *self.callee(point))
            self.answers[point] = 1 if known else 2
        if self.answers[point] == 2:
            return -1
        if self.ends[point] >= self.code_ends[piece]:
            if self.emits:
                self.last_calls.append(self.callee(point))
            return -1
        if self.flows[point] & 8 and not self.emits:  # DIRECT
            place = self.place(self.addresses[point])
            if place >= 0 and place != self.bases[self.piece]:
                self.reach(self.addresses[point], self.addresses[point], self.nothing)
        found = self.called.get(state)
        return self.frames.after_call(state) if found is None else found  # type: ignore[no-any-return]

    def callee(self, point: cython.longlong) -> tuple[int | None, int | None]:
        """Return (target, slot) of a call."""
        address: int = self.addresses[point]
        return address if self.flows[point] & 8 else None, address if self.flows[point] & 16 else None  # DIRECT, SLOT

    @cython.cfunc
    @cython.exceptval(-1)
    def leave(
        self, point: cython.longlong, flow: cython.int, here: cython.ulonglong, end: cython.ulonglong, state: cython.longlong
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
                self.jumps.append(point)
        elif flow == 5:  # RETURN
            self.returns = True
            if self.emits and self.frames.contradicts(state):
                self.contradiction = self.at[point]
        return 0
