"""One function of a file with all its pieces: its frame, and what its code shows about other functions."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from sframegen.code.context.assumptions import unguard
from sframegen.code.decoding.instruction_columns import DIRECT, SLOT
from sframegen.code.function.analysis import Surroundings, analyse
from sframegen.code.isa.effects import Flow
from sframegen.code.isa.frame_state import CALLERS, after
from sframegen.elf.ranges import Range, size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sframegen.code.context.file_context import Callee, FileContext
    from sframegen.code.decoding.pieces import Piece
    from sframegen.code.isa.effects import Point
    from sframegen.code.isa.frame_state import State
    from sframegen.code.isa.instruction_set import Isa

MAX_UNIT = 1 << 20  # bytes: half a million blocks of a kilobyte each are kept at worst; real functions have some hundred kilobytes

CALLS = (Flow.CALL, Flow.CALL | 1 << DIRECT, Flow.CALL | 1 << SLOT)
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
    analysis = analyse(pieces, dict.fromkeys(entries, isa.entry), isa, Surroundings(context.returns, table, continues))
    columns = analysis.rows
    states = {state: number for number, state in enumerate(dict.fromkeys(columns.state))}
    base = unit[0][0]
    narrow = "I" if unit[-1][1] - base < 1 << 32 else "Q"  # a browser has 16 million rows
    rows = array(narrow, [0]) * (3 * len(columns))
    rows[::3] = array(narrow, [start - base for start in columns.start])
    rows[1::3] = array(narrow, [end - base for end in columns.end])
    rows[2::3] = array(narrow, map(states.__getitem__, columns.state))
    calls = [context.callee(*call) for call in analysis.calls]
    last = [context.callee(*call) for call in analysis.last_calls]
    called = tuple(set(calls))
    goes_on = set(Counter(calls) - Counter(last) if last else called) - context.never_return
    exits = tuple([Exit(one.source, one.target, is_entry(one.state, isa)) for one in analysis.exits])
    at_end = [
        [
            _after(columns.at(piece.start + piece.at[number]), piece, number)
            for piece in pieces
            for number in piece.numbers_of(Flow.RETURN)
        ],
        [columns.at(address) for address in analysis.jumps],
    ]
    by_slot = [
        columns.at(piece.start + piece.at[number]) for piece in pieces for number in piece.numbers_of(Flow.INDIRECT | 1 << SLOT)
    ]
    reached = [[is_entry(state, isa) for state in some if state is not None] for some in at_end]
    calling = columns.at_any(
        piece.start + piece.at[number] for piece in pieces for kind in CALLS for number in piece.numbers_of(kind)
    )
    keeps_frame = all(map(all, reached))
    at_calls = frozenset([state.sp % ALIGNMENT for state in calling if state.sp is not None])
    return Found(
        unit,
        entries,
        rows,
        tuple([columns.states[state] for state in states]),
        exits=exits,
        calls=called,
        last_calls=tuple(set(last)),
        goes_on=called if len(goes_on) == len(called) else tuple(goes_on),
        taken=tuple({address for piece in pieces for address in piece.taken if context.holds(address)}),
        by_table=tuple(outside),
        comes_back=analysis.returns or bool(analysis.jumps),
        returns=len(reached[0]),
        jumps=len(reached[1]),
        keeps_frame=keeps_frame,
        shows_itself=keeps_frame and bool(reached[0]) and at_calls <= {0} and all(one.as_entered for one in exits),
        returns_as_entered=any(reached[0]) or any(is_entry(state, isa) for state in by_slot if state is not None),
        at_calls=at_calls,
        contradiction=analysis.contradiction,
    )


def _after(state: State | None, piece: Piece, number: int) -> State | None:
    """Return the state after a point: a return may authenticate, or remove arguments from the stack."""
    return None if state is None else after(state, piece.frames.effects[piece.effects[number]])


def is_entry(state: State, isa: Isa) -> bool:
    """Return True if the frame is the one that a function is entered with."""
    entry = isa.entry
    known = (state.sp, state.fp) == (entry.sp, CALLERS)
    return known and (entry.ra is None or state.ra == CALLERS) and entry.ra_at in (None, state.ra_at)
