"""One function of a file with all its pieces: its frame, and what its code shows about other functions."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, TypeAlias

from sframegen.code.context.file_context import unguard
from sframegen.code.function.analysis import FunctionWalker, Surroundings
from sframegen.code.function.findings import Findings
from sframegen.elf.ranges import Range, size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sframegen.code.context.file_context import FileContext, TargetsOf
    from sframegen.code.decoding.pieces import Piece
    from sframegen.code.isa.effects import Point

MAX_UNIT = 1 << 20  # bytes: half a million blocks of a kilobyte each are kept at worst; real functions have some hundred kilobytes

Unit: TypeAlias = "tuple[Range, ...]"  # the pieces of one function, ascending
Entries: TypeAlias = tuple[int, ...]  # where a unit is entered as functions are


class TableJumps:
    """The jump tables of one function after the other."""

    def __init__(self, context: FileContext) -> None:
        self.context = context
        self.unit: Unit = ()
        self.outside: set[int] = set()  # where they lead in other units
        self.tables: TargetsOf | None = None

    def begin(self, unit: Unit) -> None:
        self.unit = unit
        if self.tables is not None:
            self.outside = set()
            self.tables = None

    def targets(self, piece: Piece, point: Point, begins: Callable[[int], bool]) -> Sequence[int]:
        """Return all targets of an indirect jump, or none."""
        if self.tables is None:
            self.tables = self.context.tables(self._is_elsewhere)
        targets = self.tables(piece, point, begins)
        self.outside.update(target for target in targets if not begins(target))
        return targets

    def _is_elsewhere(self, target: int) -> bool:
        return self.context.holds(target) and not any(start <= target < end for start, end in self.unit)


class Units:
    """Analyses one unit of a file after the other. `findings` takes the results."""

    def __init__(self, context: FileContext) -> None:
        self.context = context
        self.continues = context.assumptions.continues if context.assumptions else None
        self.jumps = TableJumps(context)
        known = (context.answers, context.answers_by_slot) if self.continues is None else (None, None)
        self.walker = FunctionWalker(context.isa, Surroundings(context.returns, self.jumps.targets, self.continues, *known))
        starts, ends = (array("Q", [one[side] for one in context.code]) for side in (0, 1))
        self.findings = Findings(context, starts, ends)

    def analyse(self, unit: Unit, entries: Entries) -> None:
        """Analyse a unit that is entered at these addresses. Its pieces without an entry are only reached by jumps within it."""
        if size_of(unit) > MAX_UNIT:
            self.findings.add_unread(unit, entries)
        else:
            self.add([self.context.decode(*piece) for piece in unit], unit, entries)

    def add(self, pieces: Sequence[Piece], unit: Unit, entries: Entries) -> None:
        """Analyse a unit that is decoded."""
        if self.continues is not None:
            for piece in pieces:
                unguard(piece, self.continues)
        self.jumps.begin(unit)
        complete = self.walker.walk(pieces, dict.fromkeys(entries, self.context.isa.entry))
        self.walker.give(self.findings, entries, complete=complete, places=self.jumps.outside)
