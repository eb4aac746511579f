"""One function's frame, followed along every path from its entry.

Assumed without proof, because compilers comply: a block has one state, whichever path leads to it; saved registers are overwritten
only through SP and FP; a callee that returns keeps SP and FP.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from sframegen.code.decoding.pieces import is_alike_from
from sframegen.code.function.blocks import Blocks, Places, Points
from sframegen.code.function.walked_rows import states_at_flows, to_addresses
from sframegen.code.isa.effects import Flow
from sframegen.code.isa.frame_state import CALLERS, after
from sframegen.format.model import Rule, Where

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from sframegen.code.decoding.numbering import Frames
    from sframegen.code.decoding.pieces import Piece
    from sframegen.code.isa.effects import Point
    from sframegen.code.isa.frame_state import State
    from sframegen.code.isa.instruction_set import Isa
    from sframegen.format.abi import Abi

STEPS = 8  # points that may be walked for each byte of code. Large real functions need half of one
MIN_STEPS = 1 << 12
MAX_OVERLAPS = 256  # jumps into instructions of a function that are examined: they are rare


class Row(NamedTuple):
    """[start, end) has the state."""

    start: int
    end: int
    state: State


class Exit(NamedTuple):
    """A jump or a fall out of the function."""

    source: int
    target: int
    state: State


@dataclass(slots=True)
class Rows:
    """Columns, ascending: [start, end) has the state with that number in `states`, which has others too."""

    start: array[int] = field(default_factory=lambda: array("Q"))
    end: array[int] = field(default_factory=lambda: array("Q"))
    state: array[int] = field(default_factory=lambda: array("I"))
    states: Sequence[State] = ()

    def __len__(self) -> int:
        return len(self.start)

    def __iter__(self) -> Iterator[Row]:
        states = self.states
        return (Row(start, end, states[state]) for start, end, state in zip(self.start, self.end, self.state, strict=True))

    def at(self, address: int) -> State | None:
        """Return the state at an address."""
        number = bisect_right(self.start, address) - 1
        return self.states[self.state[number]] if number >= 0 and address < self.end[number] else None


@dataclass(slots=True)
class Analysis:
    """What is proven. Code without a row is not proven."""

    rows: Rows = field(default_factory=Rows)
    exits: list[Exit] = field(default_factory=list)
    calls: list[tuple[int | None, int | None]] = field(default_factory=list)  #: (target, slot) of the calls that are reached
    last_calls: list[tuple[int | None, int | None]] = field(default_factory=list)  #: the calls after which the function ends
    returns: bool = False  #: with an instruction that returns, or a jump to anywhere
    jumps: list[int] = field(default_factory=list)  #: unresolved indirect jumps
    contradiction: int | None = None  #: an instruction that returns with another frame than the entry's; then there are no rows
    at_returns: list[State] = field(default_factory=list)  #: the state after each return in `rows`
    at_calls: list[State] = field(default_factory=list)  #: the distinct states of `rows` at calls
    too_costly: bool = False  #: the walk took too many steps; `contradiction` says where, and there are no rows


class Surroundings(NamedTuple):
    """What is known outside the function."""

    returns: Callable[[int | None, int | None], bool]  #: (target, slot) of a call: true if it may return
    table: Callable[[Piece, Point, Callable[[int], bool]], Sequence[int]]
    #: all targets of an indirect jump through a register or an index, or none
    continues: Callable[[int, int], bool] | None = None  #: (address of a call, address after it): see Assumptions
    known_calls: dict[int, bool] | None = None  #: what `returns` has said already, by target


def analyse(pieces: Sequence[Piece], entries: Mapping[int, State], isa: Isa, surroundings: Surroundings) -> Analysis:
    """Analyse a function of one or several pieces, in ascending order, that is entered at `entries` with their states.

    Each block is walked again only when its state has lost one of its seven fields: the cost is linear.
    """
    function = _Function(pieces, isa, surroundings)
    blocks = function.blocks(entries)  # refers to the function, but not the reverse: no cycle needs the collector
    return function.analysis(blocks, complete=blocks.run())


class _Function:
    """The data of `Blocks`, and the answers to its questions. Points are numbered through all pieces, in order."""

    def __init__(self, pieces: Sequence[Piece], isa: Isa, surroundings: Surroundings) -> None:
        self.pieces = pieces
        self.starts = array("Q", [piece.start for piece in pieces])
        self.isa = isa
        self.surroundings = surroundings
        self.frames = pieces[-1].frames
        self.known_calls = {} if surroundings.known_calls is None else surroundings.known_calls
        self.likeness: dict[tuple[bytes, int], bool] = {}
        self.doubted = False
        self.bases = array("I", [0])
        for piece in pieces:
            self.bases.append(self.bases[-1] + len(piece.code))
        self.points = _points(pieces, self.bases, self.frames)
        self.tables = self._tables()

    def blocks(self, entries: Mapping[int, State]) -> Blocks:
        """Return the blocks, ready to be walked."""
        ends = array("I", [base + piece.code_end - piece.start for base, piece in zip(self.bases, self.pieces, strict=False)])
        blocks = Blocks(self, self.frames, self.points, Places(self.starts, self.bases, ends), STEPS * self.bases[-1] + MIN_STEPS)
        blocks.find_leaders()
        for address in (*entries, *(target for targets in self.tables.values() for target in targets)):
            blocks.lead_at(address)
        for address, state in entries.items():
            blocks.enter(address, self.frames.state_number(state))
        return blocks

    def analysis(self, blocks: Blocks, *, complete: bool) -> Analysis:
        """Return the result of the walk."""
        if not complete:
            return Analysis(contradiction=self._address(blocks.contradiction), returns=True, too_costly=True)
        states = self.frames.states
        rows, at_returns, at_calls = self._rows(blocks) if blocks.contradiction < 0 else (Rows(), [], [])
        return Analysis(
            rows,
            [Exit(source, target, states[state]) for source, target, state in blocks.exits],
            blocks.calls,
            blocks.last_calls,
            blocks.returns or self.doubted,
            [self._address(self.points.at[point]) for point in blocks.jumps],
            self._address(blocks.contradiction) if blocks.contradiction >= 0 else None,
            at_returns,
            at_calls,
        )

    def _rows(self, blocks: Blocks) -> tuple[Rows, list[State], list[State]]:
        """Return the rows, and the states after returns and at calls."""
        start, end, state = blocks.row_start, blocks.row_end, blocks.row_state
        if not blocks.ascend:
            start, end, state = zip(*sorted(zip(start, end, state, strict=True), key=lambda row: row[:2]), strict=True)
        states, effects = self.frames.states, self.frames.effects
        rows = Rows(array("Q", start), array("Q", end), array("I", state), states)
        points = self.points
        returns, calls = states_at_flows(points.flows, points.at, points.effects, rows.start, rows.end, rows.state)
        to_addresses(points.marks, self.starts, self.bases, rows.start, rows.end)
        at_returns = [
            after(states[number], effects[what]) for number, what in returns
        ]  # they may authenticate, or remove arguments
        return rows, at_returns, [states[number] for number in calls]

    def _address(self, place: int) -> int:
        number = bisect_right(self.bases, place, 0, len(self.pieces)) - 1
        return place - self.bases[number] + self.starts[number]

    def _piece(self, address: int) -> Piece | None:
        number = bisect_right(self.starts, address) - 1
        return self.pieces[number] if number >= 0 and address < self.pieces[number].end else None

    def _tables(self) -> dict[int, Sequence[int]]:
        """Return the targets by the number of the jump. A jump through a slot has none."""
        found: dict[int, Sequence[int]] = {}
        first = 0
        for piece in self.pieces:
            for number in piece.numbers_of(Flow.INDIRECT):
                targets = self.surroundings.table(piece, piece.point(number), self._begins)
                if targets:
                    found[first + number] = targets
            first += len(piece.flows)
        return found

    def _begins(self, address: int) -> bool:
        """Return True if an instruction of the function begins at the address."""
        piece = self._piece(address)
        return piece is not None and piece.begins(address)

    # -- questions of the blocks

    def returns(self, point: int, target: int | None, slot: int | None) -> bool:
        """Return True if a call may return."""
        if not self.surroundings.returns(target, slot):
            return False
        if self.surroundings.continues is None:
            return True
        here = self._address(self.points.at[point])
        end = here + self.points.ends[point] - self.points.at[point]
        piece = self._piece(here)
        if piece is None or end >= piece.code_end or self.surroundings.continues(here, end):
            return True
        self.doubted = True  # and perhaps the function returns from there
        return False

    def table(self, point: int) -> Sequence[int]:
        """Return all targets of an indirect jump; none if they are not all known."""
        return self.tables.get(point, ())

    def alike(self, address: int) -> bool:
        """Return True if the instruction around an address does the same from there on."""
        piece = self._piece(address)
        overlap = piece.instruction_around(address) if piece else (b"", 0)
        if overlap not in self.likeness:
            if len(self.likeness) == MAX_OVERLAPS:
                return False
            self.likeness[overlap] = is_alike_from(*overlap, self.isa)
        return self.likeness[overlap]


def _points(pieces: Sequence[Piece], bases: Sequence[int], frames: Frames) -> Points:
    """Return marks and points of all pieces: offsets become places, and numbers become those of `frames`."""
    if len(pieces) == 1:
        (piece,) = pieces
        return Points(piece.marks, piece.at, piece.ends, piece.effects, piece.flows, piece.addresses)
    marks, flows, at, ends, effects, addresses = bytearray(), bytearray(), array("I"), array("I"), array("I"), array("Q")
    for base, piece in zip(bases, pieces, strict=False):
        marks += piece.marks
        flows += piece.flows
        at.extend(base + offset for offset in piece.at)
        ends.extend(base + offset for offset in piece.ends)
        if piece.frames is frames:
            effects += piece.effects
        else:
            effects.extend(frames.effects_number(piece.frames.effects[number]) for number in piece.effects)
        addresses += piece.addresses
    return Points(marks, at, ends, effects, flows, addresses)


def rules(rows: Iterable[Row], abi: Abi) -> Iterator[tuple[int, int, Rule]]:
    """Yield (start, end, rule) of the ascending rows that determine a rule; neighbours with equal rules are joined."""
    last: tuple[int, int, Rule] | None = None
    for start, end, state in rows:
        rule = rule_of(state, abi.sp, abi.fp, abi.fixed_ra_offset)
        if rule is None:
            continue
        if last is None:
            last = start, end, rule
        elif last[1] == start and last[2] == rule:
            last = last[0], end, rule
        elif last[1] <= start:
            if last[0] < last[1]:
                yield last
            last = start, end, rule
        else:  # instructions that overlap
            last = last[0], min(start, last[1]), last[2]
    if last is not None and last[0] < last[1]:
        yield last


@lru_cache(1 << 12)
def rule_of(state: State, sp: int, fp: int, fixed_ra: int) -> Rule | None:
    """Return the state as a rule, with DWARF register numbers; None if the CFA, RA or the caller's FP is unknown."""
    has_record = state.fp is not None and state.fp != CALLERS and state.fp == state.fp_at
    if has_record and state.fp is not None:
        cfa = Where(fp, -state.fp)
    elif state.sp is not None:
        cfa = Where(sp, -state.sp)
    elif state.fp is not None and state.fp != CALLERS:
        cfa = Where(fp, -state.fp)
    else:
        return None
    ra = Where(None, fixed_ra, deref=True) if fixed_ra and state.ra_at == fixed_ra else _kept(state, state.ra_at, state.ra)
    fp_place = _kept(state, state.fp_at, state.fp)
    if isinstance(ra, bool) or isinstance(fp_place, bool) or state.signed is None:
        return None
    return Rule(cfa, ra, fp_place, state.signed)


def _kept(state: State, at: int | None, register: int | None) -> Where | bool | None:
    """Return the place of the caller's value on the stack; None: it is in its register; False: unknown."""
    if at is not None and (state.sp is None or at >= state.sp):
        return Where(None, at, deref=True)
    return None if register == CALLERS else False
