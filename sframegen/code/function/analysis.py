"""One function's frame, followed along every path from its entry.

Assumed without proof, because compilers comply: a block has one state, whichever path leads to it; saved registers are overwritten
only through SP and FP; a callee that returns keeps SP and FP.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from sframegen.code.decoding.decoded_code import DecodedCode, acts_alike_from
from sframegen.code.function.blocks import BasicBlocks, FunctionCode
from sframegen.code.function.findings import Findings
from sframegen.code.isa.effects import CALLERS, DIRECT, SLOT, Flow, FrameState, Point
from sframegen.elf.columns import build_spans
from sframegen.elf.ranges import Range, sum_sizes
from sframegen.format.model import Rule, Where

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from sframegen.code.context.file_context import FileContext, TargetsOf
    from sframegen.code.decoding.decoded_code import FrameNumbers
    from sframegen.code.isa.instruction_set import Isa
    from sframegen.format.abi import Abi

STEPS = 8  # points that may be walked for each byte of code. Large real functions need half of one
MIN_STEPS = 1 << 12
MAX_UNIT = 1 << 20  # bytes: half a million blocks of a kilobyte each are kept at worst; real functions have some hundred kilobytes
MAX_OVERLAPS = 256  # jumps into instructions of a function that are examined: they are rare
START = attrgetter("start")

Unit: TypeAlias = "tuple[Range, ...]"  # the pieces of one function, ascending
Entries: TypeAlias = tuple[int, ...]  # where a unit is entered as functions are


class Surroundings(NamedTuple):
    """What is known outside the function."""

    may_return: Callable[[int | None, int | None], bool]  #: (target, slot) of a call: true if it may return
    table: Callable[[DecodedCode, Point, Callable[[int], bool]], Sequence[int]]
    #: all targets of an indirect jump through a register or an index, or none
    continues: Callable[[int, int], bool] | None = None  #: (address of a call, address after it): see Assumptions
    known_returns: dict[int, bool] | None = None  #: those of `may_return` so far, by target or ~slot


class FunctionWalker:
    """Walks one function after the other. Points are numbered through all pieces."""

    def __init__(self, isa: Isa, surroundings: Surroundings) -> None:
        self.isa = isa
        self.surroundings = surroundings
        self.blocks = BasicBlocks()
        self.known_returns = {} if surroundings.known_returns is None else surroundings.known_returns

    def walk(self, pieces: Sequence[DecodedCode], entries: Mapping[int, FrameState]) -> BasicBlocks:
        """Walk a function of one or several pieces, in ascending order, that is entered at `entries` with their states.

        Each block is walked again only when its state has lost one of its seven fields: the cost is linear.
        """
        self.pieces = pieces
        self.frames = frames = pieces[-1].frames
        self.likeness: dict[tuple[bytes, int], bool] = {}
        self.doubted = False  # the function may return from where it was not walked
        self.code = code = _code_of(pieces, frames)
        tables = self._tables() if Flow.INDIRECT in code.flows else {}
        blocks = self.blocks
        steps = STEPS * len(code.marks) + MIN_STEPS
        blocks.begin(code, frames, self.known_returns, self._returns, self._acts_alike, tables, steps)
        for piece in pieces:
            blocks.add_piece(piece.start, len(piece.marks), piece.code_end - piece.start)
        blocks.find_leaders()
        for address in (*entries, *(target for targets in tables.values() for target in targets)):
            blocks.lead(address, True)
        for address, state in entries.items():
            blocks.reach(address, address, frames.state_number(state))
        blocks.run()
        return blocks

    def _piece(self, address: int) -> DecodedCode | None:
        number = bisect_right(self.pieces, address, key=START) - 1
        return self.pieces[number] if number >= 0 and address < self.pieces[number].end else None

    def _tables(self) -> dict[int, Sequence[int]]:
        """Return the targets by the number of the jump. A jump through a slot has none."""
        found: dict[int, Sequence[int]] = {}
        first = 0
        for piece in self.pieces:
            for number in piece.point_numbers(Flow.INDIRECT):
                targets = self.surroundings.table(piece, piece.point(number), self._begins)
                if targets:
                    found[first + number] = targets
            first += len(piece.flows)
        return found

    def _begins(self, address: int) -> bool:
        """Return True if an instruction of the function begins at the address."""
        piece = self._piece(address)
        return piece is not None and piece.begins(address)

    def _returns(self, point: int) -> bool:
        flow, address = self.code.flows[point], self.code.addresses[point]
        if not self.surroundings.may_return(address if flow & DIRECT else None, address if flow & SLOT else None):
            return False
        if self.surroundings.continues is None:
            return True
        here, end = self.blocks.reach_of(point)
        piece = self._piece(here)
        if piece is None or end >= piece.code_end or self.surroundings.continues(here, end):
            return True
        self.doubted = True
        return False

    def _acts_alike(self, address: int) -> bool:
        """Return True if the instruction around an address does the same from there on."""
        piece = self._piece(address)
        overlap = piece.instruction_around(address) if piece else (b"", 0)
        if overlap not in self.likeness:
            if len(self.likeness) == MAX_OVERLAPS:
                return False
            self.likeness[overlap] = acts_alike_from(*overlap, self.isa)
        return self.likeness[overlap]


def _code_of(pieces: Sequence[DecodedCode], frames: FrameNumbers) -> FunctionCode:
    """Return the code of all pieces: offsets become places, and numbers become those of `frames`."""
    if len(pieces) == 1:
        (piece,) = pieces
        return FunctionCode(piece.marks, piece.at, piece.ends, piece.effects, piece.flows, piece.addresses)
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
    return FunctionCode(marks, at, ends, effects, flows, addresses)


class TableJumps:
    """The jump tables of one function after the other."""

    def __init__(self, context: FileContext) -> None:
        self.context = context
        self.unit: Unit = ()
        self.outside: set[int] = set()  # where they lead in other units
        self.tables: TargetsOf | None = None

    def begin(self, unit: Unit) -> None:
        self.unit, self.outside, self.tables = unit, set(), None

    def targets(self, piece: DecodedCode, point: Point, begins: Callable[[int], bool]) -> Sequence[int]:
        """Return all targets of an indirect jump, or none."""
        if self.tables is None:
            self.tables = self.context.make_table_finder(self._is_elsewhere)
        targets = self.tables(piece, point, begins)
        self.outside.update(target for target in targets if not begins(target))
        return targets

    def _is_elsewhere(self, target: int) -> bool:
        return self.context.contains(target) and not any(start <= target < end for start, end in self.unit)


class Units:
    """Analyses one unit of a file after the other. `findings` takes the results."""

    def __init__(self, context: FileContext) -> None:
        self.context = context
        self.continues = context.assumptions.continues if context.assumptions else None
        self.jumps = TableJumps(context)
        known_returns = context.known_returns if self.continues is None else None
        self.walker = FunctionWalker(
            context.isa, Surroundings(context.may_return, self.jumps.targets, self.continues, known_returns)
        )
        self.findings = Findings(context, build_spans(context.code))

    def analyse(self, unit: Unit, entries: Entries) -> None:
        """Analyse a unit that is entered at these addresses. Its pieces without an entry are only reached by jumps within it."""
        if sum_sizes(unit) > MAX_UNIT:
            self.findings.add_unread(unit, entries)
        else:
            self.add([self.context.decode(*piece) for piece in unit], unit, entries)

    def add(self, pieces: Sequence[DecodedCode], unit: Unit, entries: Entries) -> None:
        if self.continues is not None:
            for piece in pieces:
                _unguard(piece, self.continues)
        self.jumps.begin(unit)
        blocks = self.walker.walk(pieces, dict.fromkeys(entries, self.context.isa.entry))
        takes = [piece.taken for piece in pieces]
        self.findings.add(blocks, self.walker.doubted, entries, takes, self.jumps.outside)
        blocks.end()  # which refers to the walker


def _unguard(piece: DecodedCode, continues: Callable[[int, int], bool]) -> None:
    """Remove the branches before table jumps whose targets control cannot reach: `__builtin_unreachable()`.

    Compilers keep the comparison of the index, and let it branch to whatever code is next.
    """
    for number in piece.point_numbers(Flow.INDIRECT):
        before = number - 1
        while before >= 0 and piece.flows[before] == Flow.NEXT:
            before -= 1
        if before >= 0 and piece.flows[before] == Flow.BRANCH | DIRECT:
            point = piece.point(before)
            if point.target is not None and not continues(point.address, point.target):
                piece.flows[before] = Flow.NEXT


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
