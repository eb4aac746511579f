"""One function of a file with all its pieces: its frame, and what its code shows about other functions."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from sframegen.code.context.assumptions import unguard
from sframegen.code.decoding.instruction_columns import SLOT
from sframegen.code.function.analysis import Surroundings, analyse
from sframegen.code.function.walked_rows import packed
from sframegen.code.isa.effects import Flow
from sframegen.code.isa.frame_state import CALLERS
from sframegen.elf.ranges import Range, size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sframegen.code.context.file_context import Callee, FileContext
    from sframegen.code.decoding.pieces import Piece
    from sframegen.code.isa.effects import Point
    from sframegen.code.isa.frame_state import State
    from sframegen.code.isa.instruction_set import Isa

MAX_UNIT = 1 << 20  # bytes: half a million blocks of a kilobyte each are kept at worst; real functions have some hundred kilobytes

ALIGNMENT = 16  # bytes: of SP, where a compiler's function calls another

Unit: TypeAlias = "tuple[Range, ...]"  # the pieces of one function, ascending
Entries: TypeAlias = tuple[int, ...]  # where a unit is entered as functions are


class Exit(NamedTuple):
    """A jump or a fall out of a unit."""

    source: int
    target: int
    as_entered: bool  #: with the frame that an entry has


class Found(NamedTuple):
    """The result for one unit. Tuples, without repetitions: a browser has half a million units."""

    unit: Unit
    entries: Entries
    rows: array[int]  #: start and end of each row, from the begin of the unit, and the state's number in `states`
    states: tuple[State, ...]
    exits: tuple[Exit, ...] = ()
    calls: tuple[Callee, ...] = ()
    last_calls: tuple[Callee, ...] = ()  #: those calls that end the code
    goes_on: tuple[Callee, ...] = ()  #: those calls after which code counts as reached
    taken: tuple[int, ...] = ()  #: addresses of code that instructions put into registers
    by_table: tuple[int, ...] = ()  #: places in other units that jump tables lead to
    comes_back: bool = True  #: with an instruction that returns, or a jump to anywhere
    returns: int = 0  #: instructions that are reached and return
    jumps: int = 0  #: those that jump to anywhere
    keeps_frame: bool = False  #: all returns and jumps find the frame of the entry
    shows_itself: bool = False  #: its own code has all marks of a function: it returns, and each way out has the frame of the entry
    at_calls: frozenset[int] = frozenset()  #: SP minus the CFA at calls, modulo ALIGNMENT
    returns_as_entered: bool = False  #: a return, or a jump through memory at a fixed address, finds the frame of the entry
    overruns: tuple[int, bool] | None = None  #: a function start inside an instruction, and whether that instruction is reached
    contradiction: int | None = None

    def row_at(self, address: int) -> int:
        """Return the number of the first row that begins at or after an address."""
        return bisect_left(range(len(self.rows) // 3), address - self.unit[0][0], key=lambda row: self.rows[3 * row])

    def state_at(self, address: int) -> State | None:
        """Return the state at an address; None if it is not known to be reached."""
        row = self.row_at(address + 1) - 1
        if row < 0 or address - self.unit[0][0] >= self.rows[3 * row + 1]:
            return None
        return self.states[self.rows[3 * row + 2]]


def analyse_unit(context: FileContext, unit: Unit, entries: Entries) -> Found:
    """Analyse a unit that is entered at these addresses. Its pieces without an entry are only reached by jumps within it."""
    if size_of(unit) > MAX_UNIT:
        return Found(unit, entries, array("Q"), ())
    return analyse_pieces(context, [context.decode(*piece) for piece in unit], entries)


def analyse_pieces(context: FileContext, pieces: Sequence[Piece], entries: Entries) -> Found:
    isa = context.isa
    unit = tuple((piece.start, piece.end) for piece in pieces)
    outside: set[int] = set()
    tables = context.tables(lambda target: context.holds(target) and not any(start <= target < end for start, end in unit))

    def table(piece: Piece, point: Point, begins: Callable[[int], bool]) -> Sequence[int]:
        targets = tables(piece, point, begins)
        outside.update(target for target in targets if not begins(target))
        return targets

    continues = context.assumptions.continues if context.assumptions else None
    if continues is not None:
        for piece in pieces:
            unguard(piece, continues)
    known = context.answers if continues is None else None
    analysis = analyse(pieces, dict.fromkeys(entries, isa.entry), isa, Surroundings(context.returns, table, continues, known))
    columns = analysis.rows
    base = unit[0][0]
    rows, states = packed(columns.start, columns.end, columns.state, base)
    narrow = "I" if unit[-1][1] - base < 1 << 32 else "Q"  # a browser has 16 million rows
    callees = {call: context.callee(*call) for call in set(analysis.calls)}
    called = tuple(set(callees.values()))
    last = [callees[call] for call in analysis.last_calls]
    goes_on = set(Counter(map(callees.__getitem__, analysis.calls)) - Counter(last) if last else called) - context.never_return
    exits = tuple([Exit(one.source, one.target, is_entry(one.state, isa)) for one in analysis.exits])
    by_slot = [
        columns.at(piece.start + piece.at[number]) for piece in pieces for number in piece.numbers_of(Flow.INDIRECT | 1 << SLOT)
    ]
    returns = [is_entry(state, isa) for state in analysis.at_returns]
    jumps = [is_entry(state, isa) for address in analysis.jumps if (state := columns.at(address)) is not None]
    keeps_frame = all(returns) and all(jumps)
    at_calls = frozenset([state.sp % ALIGNMENT for state in analysis.at_calls if state.sp is not None])
    return Found(
        unit,
        entries,
        array(narrow, rows),
        tuple([columns.states[state] for state in states]),
        exits=exits,
        calls=called,
        last_calls=tuple(set(last)),
        goes_on=called if len(goes_on) == len(called) else tuple(goes_on),
        taken=tuple({address for piece in pieces for address in context.in_code(piece.taken)}),
        by_table=tuple(outside),
        comes_back=analysis.returns or bool(analysis.jumps),
        returns=len(returns),
        jumps=len(jumps),
        keeps_frame=keeps_frame,
        shows_itself=keeps_frame and bool(returns) and at_calls <= {0} and all(one.as_entered for one in exits),
        returns_as_entered=any(returns) or any(is_entry(state, isa) for state in by_slot if state is not None),
        at_calls=at_calls,
        contradiction=analysis.contradiction,
    )


def is_entry(state: State, isa: Isa) -> bool:
    """Return True if the frame is the one that a function is entered with."""
    entry = isa.entry
    known = (state.sp, state.fp) == (entry.sp, CALLERS)
    return known and (entry.ra is None or state.ra == CALLERS) and entry.ra_at in (None, state.ra_at)
