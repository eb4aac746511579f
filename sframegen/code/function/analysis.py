"""One function's frame, followed along every path from its entry.

Assumed without proof, because compilers comply: a block has one state, whichever path leads to it; saved registers are overwritten
only through SP and FP; a callee that returns keeps SP and FP.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from sframegen.code.decoding.pieces import is_alike_from
from sframegen.code.function.blocks import BasicBlocks, Points
from sframegen.code.isa.effects import Flow
from sframegen.code.isa.frame_state import CALLERS
from sframegen.format.model import Rule, Where

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from sframegen.code.decoding.numbering import Frames
    from sframegen.code.decoding.pieces import Piece
    from sframegen.code.function.findings import Findings
    from sframegen.code.isa.effects import Point
    from sframegen.code.isa.frame_state import FrameState
    from sframegen.code.isa.instruction_set import Isa
    from sframegen.format.abi import Abi

STEPS = 8  # points that may be walked for each byte of code. Large real functions need half of one
MIN_STEPS = 1 << 12
MAX_OVERLAPS = 256  # jumps into instructions of a function that are examined: they are rare
START = attrgetter("start")


class Surroundings(NamedTuple):
    """What is known outside the function."""

    returns: Callable[[int | None, int | None], bool]  #: (target, slot) of a call: true if it may return
    table: Callable[[Piece, Point, Callable[[int], bool]], Sequence[int]]
    #: all targets of an indirect jump through a register or an index, or none
    continues: Callable[[int, int], bool] | None = None  #: (address of a call, address after it): see Assumptions
    known_targets: dict[int, bool] | None = None  #: what `returns` has said already, by target
    known_slots: dict[int, bool] | None = None  #: and by slot


class FunctionWalker:
    """Walks one function after the other; answers the questions of `BasicBlocks`. Points are numbered through all pieces."""

    def __init__(self, isa: Isa, surroundings: Surroundings) -> None:
        self.isa = isa
        self.surroundings = surroundings
        self.blocks = BasicBlocks()
        self.known_targets = {} if surroundings.known_targets is None else surroundings.known_targets
        self.known_slots = {} if surroundings.known_slots is None else surroundings.known_slots

    def walk(self, pieces: Sequence[Piece], entries: Mapping[int, FrameState]) -> bool:
        """Walk a function of one or several pieces, in ascending order, that is entered at `entries` with their states.

        Return True if there were steps enough. Each block is walked again only when its state has lost one of its seven fields: the
        cost is linear.
        """
        self.pieces = pieces
        self.frames = frames = pieces[-1].frames
        self.likeness: dict[tuple[bytes, int], bool] = {}
        self.doubted = False
        points = _points(pieces, frames)
        blocks = self.blocks
        blocks.begin(self, frames, points, STEPS * len(points.marks) + MIN_STEPS)
        for piece in pieces:
            blocks.add_piece(piece.start, len(piece.marks), piece.code_end - piece.start)
        self.tables = self._tables() if Flow.INDIRECT in points.flows else {}
        blocks.find_leaders()
        for address in (*entries, *(target for targets in self.tables.values() for target in targets)):
            blocks.lead_at(address)
        for address, state in entries.items():
            blocks.enter(address, frames.state_number(state))
        return blocks.run()

    def give(self, findings: Findings, entries: Iterable[int], *, complete: bool, places: Iterable[int] = ()) -> None:
        """Add the function that was walked to the findings. `places`: where its jump tables lead elsewhere."""
        findings.add(self.blocks, complete, self.doubted, entries, [piece.taken for piece in self.pieces], places)
        self.blocks.end()  # which refers to this object

    def _piece(self, address: int) -> Piece | None:
        number = bisect_right(self.pieces, address, key=START) - 1
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
        here, end = self.blocks.reach_of(point)
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


def _points(pieces: Sequence[Piece], frames: Frames) -> Points:
    """Return marks and points of all pieces: offsets become places, and numbers become those of `frames`."""
    if len(pieces) == 1:
        (piece,) = pieces
        return Points(piece.marks, piece.at, piece.ends, piece.effects, piece.flows, piece.addresses)
    marks, flows, at, ends, effects, addresses = bytearray(), bytearray(), array("I"), array("I"), array("I"), array("Q")
    for piece in pieces:
        base = len(marks)
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


def rules(rows: Iterable[tuple[int, int, FrameState]], abi: Abi) -> Iterator[tuple[int, int, Rule]]:
    """Yield (start, end, rule) of the ascending rows (start, end, state) that determine a rule; equal neighbours are joined."""
    last: tuple[int, int, Rule] | None = None
    for start, end, state in rows:
        rule = rule_of_state(state, abi.sp, abi.fp, abi.fixed_ra_offset)
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
def rule_of_state(state: FrameState, sp: int, fp: int, fixed_ra: int) -> Rule | None:
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


def _kept(state: FrameState, at: int | None, register: int | None) -> Where | bool | None:
    """Return the place of the caller's value on the stack; None: it is in its register; False: unknown."""
    if at is not None and (state.sp is None or at >= state.sp):
        return Where(None, at, deref=True)
    return None if register == CALLERS else False
