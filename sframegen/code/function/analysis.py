"""Follows the frame of each function along every path from its entry.

UnitAnalyser analyses the units (functions, each in one or several pieces) of a file: FunctionWalker walks one with BasicBlocks,
TableTargets finds where its jump tables lead, and Findings collects the results. rules_of_states.py makes rules of the states.

This is assumed without proof, because compilers comply: a block has one state, whichever path leads to it; saved registers are
overwritten only through SP and FP; a callee that returns keeps SP and FP.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from sframegen.code.decoding.decoded_code import DecodedCode, acts_alike_from
from sframegen.code.function.blocks import BasicBlocks, FunctionCode
from sframegen.code.function.findings import Findings
from sframegen.code.isa.effects import DIRECT, SLOT, Flow, FrameState, Point
from sframegen.elf.columns import build_spans
from sframegen.elf.ranges import Range, sum_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sframegen.code.context.file_context import FileContext, TargetsOf
    from sframegen.code.decoding.decoded_code import FrameNumbers
    from sframegen.code.isa.instruction_set import Isa

STEPS_PER_BYTE = 8  # points that may be walked for each byte of code; large real functions need half a point
MIN_STEPS = 1 << 12
MAX_UNIT = 1 << 20  # bytes: half a million blocks of a kilobyte each are kept at worst; real functions have some hundred kilobytes
MAX_OVERLAPS = 256  # jumps into the middle of instructions that are examined in a function; they are rare
START = attrgetter("start")

Unit: TypeAlias = "tuple[Range, ...]"  # the pieces of one function, ascending
Entries: TypeAlias = tuple[int, ...]  # addresses where a unit is entered by calls, with the frame `isa.entry`


class Surroundings(NamedTuple):
    """What the rest of the file tells the walk through a function."""

    may_return: Callable[[int | None, int | None], bool]  #: (target, slot) of a call: true if it may return
    find_targets: Callable[[DecodedCode, Point, Callable[[int], bool]], Sequence[int]]
    #: all targets of an indirect jump; none if they are unknown
    continues: Callable[[int, int], bool] | None = None
    #: (call, address after it): true if control gets there (Assumptions in file_context.py); None: it does if the call may return
    known_returns: dict[int, bool] | None = None  #: answers of `may_return` so far, by target or ~slot


class FunctionWalker:
    """Walks one function after the other. The numbers of points count through all pieces."""

    def __init__(self, isa: Isa, surroundings: Surroundings) -> None:
        self.isa = isa
        self.surroundings = surroundings
        self.blocks = BasicBlocks()
        self.known_returns = {} if surroundings.known_returns is None else surroundings.known_returns

    def walk(self, pieces: Sequence[DecodedCode], entries: Mapping[int, FrameState]) -> BasicBlocks:
        """Walk a function of one or several pieces, in ascending order, that is entered at `entries` with their states.

        The cost is linear, because a block is walked again only when its state has lost one of its seven fields.
        """
        self.pieces = pieces
        self.frames = frames = pieces[-1].frames  # for all pieces; those of earlier pieces may be full
        self.alike_cache: dict[tuple[bytes, int], bool] = {}
        self.returns_elsewhere = False  # the function may return from where it was not walked
        self.code = code = _concatenate_pieces(pieces, frames)
        tables = self._tables() if Flow.INDIRECT in code.flows else {}
        blocks = self.blocks
        blocks.start_function(
            code, frames, known_returns=self.known_returns, call_returns=self._may_return, acts_alike=self._acts_alike,
            tables=tables, steps=STEPS_PER_BYTE * len(code.marks) + MIN_STEPS,
        )  # fmt: skip
        for piece in pieces:
            blocks.add_piece(piece.start, len(piece.marks), piece.code_end - piece.start)
        blocks.find_leaders()
        for address in (*entries, *(target for targets in tables.values() for target in targets)):
            blocks.mark_leader(address, True)  # exact
        for address, state in entries.items():
            blocks.propagate_state(address, address, frames.state_number(state))  # control comes from outside: no source
        blocks.walk()
        return blocks

    def _piece(self, address: int) -> DecodedCode | None:
        number = bisect_right(self.pieces, address, key=START) - 1
        return self.pieces[number] if number >= 0 and address < self.pieces[number].end else None

    def _tables(self) -> dict[int, Sequence[int]]:
        """Map the number of each indirect jump to its targets, if these are known. A jump through a slot has none."""
        found: dict[int, Sequence[int]] = {}
        first = 0
        for piece in self.pieces:
            for number in piece.point_numbers(Flow.INDIRECT):
                targets = self.surroundings.find_targets(piece, piece.point(number), self._is_instruction_start)
                if targets:
                    found[first + number] = targets
            first += len(piece.flows)
        return found

    def _is_instruction_start(self, address: int) -> bool:
        piece = self._piece(address)
        return piece is not None and piece.begins(address)

    def _may_return(self, point: int) -> bool:
        """Return True if control comes back from a call to the code after it; if to elsewhere, set `returns_elsewhere`."""
        flow, address = self.code.flows[point], self.code.addresses[point]
        if not self.surroundings.may_return(address if flow & DIRECT else None, address if flow & SLOT else None):
            return False
        if self.surroundings.continues is None:
            return True
        here, end = self.blocks.address_range_of(point)
        piece = self._piece(here)
        if piece is None or end >= piece.code_end or self.surroundings.continues(here, end):
            return True
        self.returns_elsewhere = True
        return False

    def _acts_alike(self, address: int) -> bool:
        """Return True if the instruction around an address does the same if a jump to there skips its prefix (acts_alike_from)."""
        piece = self._piece(address)
        overlap = piece.instruction_around(address) if piece else (b"", 0)
        if overlap not in self.alike_cache:
            if len(self.alike_cache) == MAX_OVERLAPS:
                return False
            self.alike_cache[overlap] = acts_alike_from(*overlap, self.isa)
        return self.alike_cache[overlap]


def _concatenate_pieces(pieces: Sequence[DecodedCode], frames: FrameNumbers) -> FunctionCode:
    """Return the pieces as one: offsets count through all of them, and effects have the numbers of `frames`."""
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


class TableTargets:
    """Finds the targets of jump tables, of one unit after the other; `begin` starts a unit."""

    def __init__(self, context: FileContext) -> None:
        self.context = context
        self.unit: Unit = ()
        self.outside: set[int] = set()  # the targets in other units
        self.tables: TargetsOf | None = None

    def begin(self, unit: Unit) -> None:
        self.unit, self.outside, self.tables = unit, set(), None

    def find_targets(self, piece: DecodedCode, point: Point, begins: Callable[[int], bool]) -> Sequence[int]:
        if self.tables is None:
            self.tables = self.context.make_table_finder(self._is_in_another_unit)
        targets = self.tables(piece, point, begins)
        self.outside.update(target for target in targets if not begins(target))
        return targets

    def _is_in_another_unit(self, target: int) -> bool:
        return self.context.contains(target) and not any(start <= target < end for start, end in self.unit)


class UnitAnalyser:
    """Analyses one unit of a file after the other, and collects the results in `findings`."""

    def __init__(self, context: FileContext) -> None:
        self.context = context
        self.continues = context.assumptions.continues if context.assumptions else None
        self.jumps = TableTargets(context)
        known_returns = context.known_returns if self.continues is None else None
        self.walker = FunctionWalker(
            context.isa, Surroundings(context.may_return, self.jumps.find_targets, self.continues, known_returns)
        )
        self.findings = Findings(context, build_spans(context.code))

    def analyse(self, unit: Unit, entries: Entries) -> None:
        """Analyse a unit that is called at these addresses. Pieces without an entry are only reached by jumps within the unit."""
        if sum_sizes(unit) > MAX_UNIT:
            self.findings.add_unanalysed(unit, entries)
        else:
            self.analyse_decoded([self.context.decode(*piece) for piece in unit], unit, entries)

    def analyse_decoded(self, pieces: Sequence[DecodedCode], unit: Unit, entries: Entries) -> None:
        """Analyse a unit whose pieces are decoded. Changes `flows` of the pieces: branches that are never taken are removed."""
        if self.continues is not None:
            for piece in pieces:
                _remove_unreachable_branches(piece, self.continues)
        self.jumps.begin(unit)
        blocks = self.walker.walk(pieces, dict.fromkeys(entries, self.context.isa.entry))
        takes = [piece.taken for piece in pieces]
        self.findings.add(blocks, self.walker.returns_elsewhere, entries, takes, self.jumps.outside)
        blocks.drop_references()  # to the walker


def _remove_unreachable_branches(piece: DecodedCode, continues: Callable[[int, int], bool]) -> None:
    """Remove branches before table jumps if control cannot reach their targets, because of `__builtin_unreachable()`.

    Compilers keep the comparison of the index there, and let it branch to whatever code comes next.
    """
    for number in piece.point_numbers(Flow.INDIRECT):
        before = number - 1
        while before >= 0 and piece.flows[before] == Flow.NEXT:
            before -= 1
        if before >= 0 and piece.flows[before] == Flow.BRANCH | DIRECT:
            point = piece.point(before)
            if point.target is not None and not continues(point.address, point.target):
                piece.flows[before] = Flow.NEXT
