"""One function's frame, followed along every path from its entry.

Accepted without proof, as compilers keep to it: a block has one state, on whichever path it is reached; nobody writes on saved
registers by other pointers than SP and FP; a callee that returns keeps SP and FP.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from sframegen.code.effects import Flow
from sframegen.code.pieces import is_alike_from
from sframegen.code.state import CALLERS, NOTHING, after, after_call, join
from sframegen.model import Rule, Where

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from sframegen.abi import Abi
    from sframegen.code.effects import Point
    from sframegen.code.isa import Isa
    from sframegen.code.pieces import Piece
    from sframegen.code.state import State


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
class Analysis:
    """What is proven. Where there is no row, nothing is."""

    rows: list[Row] = field(default_factory=list)
    exits: list[Exit] = field(default_factory=list)
    calls: list[tuple[int | None, int | None]] = field(default_factory=list)  #: (target, slot) of those that are reached
    last_calls: list[tuple[int | None, int | None]] = field(default_factory=list)  #: those behind which the function ends
    returns: bool = False  #: by an instruction that returns, or a jump to anywhere
    jumps: list[int] = field(default_factory=list)  #: indirect ones that are not resolved
    contradiction: int | None = None  #: an instruction that returns with a frame other than the entry's: no rows, then


class Surroundings(NamedTuple):
    """What is known outside of the function."""

    returns: Callable[[int | None, int | None], bool]  #: (target, slot) of a call: whether it may come back
    table: Callable[[Piece, Point, Callable[[int], bool]], Sequence[int]]  #: all targets of an indirect jump, or none


def analyse(pieces: Sequence[Piece], entries: Mapping[int, State], isa: Isa, around: Surroundings) -> Analysis:
    """A function of one or several pieces, in ascending order, that is entered at `entries` with their states."""
    return _Walk(pieces, entries, isa, around).run()


class _Walk:
    def __init__(self, pieces: Sequence[Piece], entries: Mapping[int, State], isa: Isa, around: Surroundings) -> None:
        self.pieces = pieces
        self.starts = [piece.start for piece in pieces]
        self.first_bytes = set(self.starts)
        self.last = pieces[0]
        self.isa = isa
        self.around = around
        self.tables = self._tables()
        self.leaders = self._leaders(entries)
        self.states: dict[int, State] = {}
        self.work: list[int] = []
        self.alike: dict[int, bool] = {}
        self.blocks: dict[int, Analysis] = {}
        self.block = Analysis()
        for address, state in entries.items():
            self._reach(address, address, state)

    def run(self) -> Analysis:
        """Each block is visited again only when its state has lost a field, of which there are seven: the cost is linear."""
        while self.work:
            leader = self.work.pop()
            self.block = self.blocks[leader] = Analysis()
            self._block(leader)
        result = Analysis()
        for block in self.blocks.values():
            result.rows += block.rows
            result.exits += block.exits
            result.calls += block.calls
            result.last_calls += block.last_calls
            result.jumps += block.jumps
            result.returns |= block.returns
            if block.contradiction is not None:
                result.contradiction = block.contradiction
        if result.contradiction is not None:
            result.rows = []
        self._pad(result.rows)
        return result

    def _pad(self, rows: list[Row]) -> None:
        """Padding between two rows that nothing reaches belongs to the first, as in compilers' CFI."""
        rows.sort()
        for place in range(len(rows) - 1):
            end = rows[place].end
            if end < rows[place + 1].start and (piece := self._piece(end)) is not None:
                number = bisect_left(piece.addresses, end)
                last = bisect_left(piece.addresses, rows[place + 1].start)
                if all(self.isa.pads(*instruction[2:]) for instruction in piece.instructions[number:last]):
                    rows[place] = rows[place]._replace(end=rows[place + 1].start)

    def _piece(self, address: int) -> Piece | None:
        if not self.last.start <= address < self.last.end:
            piece = self.pieces[bisect_right(self.starts, address) - 1]
            if not piece.start <= address < piece.end:
                return None
            self.last = piece
        return self.last

    def _tables(self) -> dict[int, Sequence[int]]:
        found = {}
        for piece in self.pieces:
            for point in piece.points:
                if point.flow is Flow.INDIRECT:
                    targets = self.around.table(piece, point, self._begins)
                    if targets:
                        found[point.address] = targets
        return found

    def _begins(self, address: int) -> bool:
        """Whether an instruction of the function begins there."""
        piece = self._piece(address)
        return piece is not None and piece.begins(address)

    def _leaders(self, entries: Iterable[int]) -> list[int]:
        found = set(entries)
        for piece in self.pieces:
            for point in piece.points:
                if point.target is not None:
                    found.add(self._instruction(point.target))
                if point.flow is Flow.BRANCH:
                    found.add(point.end)
        for targets in self.tables.values():
            found.update(targets)
        return sorted(found)

    def _instruction(self, address: int) -> int:
        """The instruction that the address is in."""
        piece = self._piece(address)
        return piece.instruction_at(address)[0] if piece else address

    def _reach(self, source: int, target: int, state: State) -> None:
        """Control may get there with the state."""
        piece = self._piece(target)
        if piece is None:
            self.block.exits.append(Exit(source, target, state))
            return
        begin = piece.instruction_at(target)[0]
        if begin != target:  # instructions overlap
            if target not in self.alike:
                self.alike[target] = is_alike_from(piece, target, self.isa)
            target, state = begin, state if self.alike[target] else NOTHING
        known = self.states.get(target)
        joined = state if known is None else join(known, state)
        if joined != known:
            self.states[target] = joined
            self.work.append(target)

    def _block(self, leader: int) -> None:
        """From a leader to the next, or to where control goes elsewhere."""
        state = self.states[leader]
        piece = self._piece(leader)
        if piece is None:
            return
        number = bisect_right(self.leaders, leader)
        limit = min(piece.end, self.leaders[number] if number < len(self.leaders) else piece.end)
        place = bisect_left(piece.point_addresses, leader)
        begin = leader
        while place < len(piece.points):
            point = piece.points[place]
            if point.address >= limit:
                break
            place += 1
            before = state
            if point.effects:
                state = after(state, point.effects)
                if state != before:
                    self._row(begin, point.end, before)
                    begin = point.end
            if point.flow is Flow.NEXT:
                continue
            if point.flow is not Flow.CALL:
                self._row(begin, point.end, state)
                self._leave(point, state)
                return
            behind = self._call(piece, point, state)
            if behind != state:
                self._row(begin, point.end, state)
                begin = point.end
            if behind is None:
                return
            state = behind
        self._row(begin, limit, state)
        if limit == piece.end:
            self.block.returns = True
        self._reach(limit, limit, state)

    def _row(self, start: int, end: int, state: State) -> None:
        if start < end:
            self.block.rows.append(Row(start, end, state))

    def _call(self, piece: Piece, point: Point, state: State) -> State | None:
        """The state behind a call; None where nothing is."""
        self.block.calls.append((point.target, point.slot))
        if not self.around.returns(point.target, point.slot):
            return None
        if point.end >= piece.code_end:
            self.block.last_calls.append((point.target, point.slot))
            return None
        if point.target is not None and point.target not in self.first_bytes and self._piece(point.target) is not None:
            self._reach(point.address, point.target, NOTHING)
        return after_call(state)

    def _leave(self, point: Point, state: State) -> None:
        match point.flow:
            case Flow.JUMP | Flow.BRANCH:
                if point.target is not None:
                    self._reach(point.address, point.target, state)
                if point.flow is Flow.BRANCH:
                    self._reach(point.address, point.end, state)
            case Flow.INDIRECT:
                targets = self.tables.get(point.address)
                for target in targets or ():
                    self._reach(point.address, target, state)
                if not targets:
                    self.block.jumps.append(point.address)
            case Flow.RETURN:
                self.block.returns = True
                if self._contradicts(state):
                    self.block.contradiction = point.address

    def _contradicts(self, state: State) -> bool:
        """Whether a function cannot return with the state: what was thought of it is wrong."""
        entry = self.isa.entry
        return any(
            known is not None and known != expected
            for known, expected in ((state.sp, entry.sp), (state.fp, entry.fp), (state.ra, entry.ra if entry.ra else state.ra))
        )


def rules(rows: Iterable[Row], abi: Abi) -> list[tuple[int, int, Rule]]:
    """(start, end, rule) of the rows (ascending) that say enough for one; neighbours with equal rules are one."""
    found: list[tuple[int, int, Rule]] = []
    for start, end, state in rows:
        rule = rule_of(state, abi.sp, abi.fp, abi.fixed_ra_offset)
        if rule is None:
            continue
        if found and found[-1][1] == start and found[-1][2] == rule:
            found[-1] = (found[-1][0], end, rule)
        elif not found or found[-1][1] <= start:
            found.append((start, end, rule))
        else:  # instructions that overlap
            found[-1] = (found[-1][0], min(start, found[-1][1]), found[-1][2])
    return [row for row in found if row[0] < row[1]]


@lru_cache(1 << 12)
def rule_of(state: State, sp: int, fp: int, fixed_ra: int) -> Rule | None:
    """The state as a rule, with the registers' numbers; None where the CFA, RA or the caller's FP is not known."""
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
    """Where the caller's value is: on the stack, or None: in its register; False: not known."""
    if at is not None and (state.sp is None or at >= state.sp):
        return Where(None, at, deref=True)
    return None if register == CALLERS else False
