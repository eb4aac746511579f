"""What functions show, by columns: of one after the other, as their blocks were walked. Compiled."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if not cython.compiled:
    from bisect import bisect_right
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sframegen.base.columns import Column
    from sframegen.code.context.file_context import FileContext
    from sframegen.code.function.blocks import BasicBlocks
    from sframegen.code.isa.frame_state import FrameState

COMPILED: bool = cython.compiled

# What a function shows, in bits.
COMES_BACK = 1  #: with an instruction that returns, or a jump to anywhere
RETURNS = 2  #: an instruction that returns is reached
JUMPS = 4  #: one that jumps to anywhere is reached
KEEPS_FRAME = 8  #: all returns and jumps find the frame of the entry
SHOWS_ITSELF = 16  #: its own code has all marks of a function: it returns, and each way out has the frame of the entry
RETURNS_AS_ENTERED = 32  #: a return, or a jump through memory at a fixed address, finds the frame of the entry
CONTRADICTS = 64  #: an instruction returns with another frame than the entry's, or the walk took too many steps: there are no rows
OVERRUNS = 256  #: a function start is inside an instruction of it
OVERRUN_IS_REACHED = 512  #: and that instruction is reached

# Of a call.
GOES_ON = 1  #: code after such a call counts as reached
ENDS = 2  #: such a call ends the code
BY_NAME = 4  #: the callee is the number of a name, not an address


class FindingColumns(NamedTuple):
    """Results of functions. All columns are array("Q").

    Those that begin with `end_` have one place more than there are functions: function n has [end_x[n], end_x[n + 1]) of x.
    """

    states: list[FrameState]
    marks: array[int]  #: of each function, as above
    at_calls: array[int]  #: bits: SP minus the CFA at calls, modulo 16
    overrun: array[int]  #: the function start, or 0
    end_piece: array[int]
    piece_start: array[int]
    piece_end: array[int]
    end_entry: array[int]
    entry: array[int]  #: where it is entered as functions are
    end_row: array[int]
    row_start: array[int]
    row_word: array[int]  #: size << 32 | the state's number in `states`
    end_exit: array[int]  #: jumps and falls out of it
    exit_source: array[int]
    exit_target: array[int]
    exit_as_entered: array[int]  #: 1: with the frame that an entry has
    end_call: array[int]
    callee: array[int]  #: distinct; unknown ones are left out
    call_kind: array[int]  #: GOES_ON, ENDS, BY_NAME
    end_taken: array[int]
    taken: array[int]  #: addresses of code that instructions put into registers
    end_table: array[int]
    table: array[int]  #: places in other units that jump tables lead to


class GrowingColumn:
    """A column of numbers that grows."""

    def __init__(self, *values: int) -> None:
        self.values = array("Q", bytes(8 * 64))
        self.count = 0
        for value in values:
            self.append(value)

    def append(self, value: cython.ulonglong) -> cython.int:
        if self.count == len(self.values):
            self.values = self.column() * 2
        self.values[self.count] = value
        self.count += 1
        return 0

    def column(self) -> array[int]:
        """All of them."""
        found = array("Q")
        found.frombytes(memoryview(self.values[: self.count]).cast("B"))
        return found


class Findings:
    """Takes the results of functions after they were walked. `code`: where analysed code begins, and where it ends, ascending."""

    def __init__(self, outside: FileContext, code_starts: Column, code_ends: Column) -> None:
        self.outside: Any = outside
        self.stubs = outside.stubs
        self.callees_by_slot = outside.callees_by_slot
        self.code_starts = code_starts
        self.code_ends = code_ends
        self.frames: Any = None
        self.numbers: dict[int, int] = {}  # of its states, in `states`
        self.callees: dict[int | str, int] = {}  # of the function, with the kinds of their calls
        self.words: Column = array("Q")  # that may be addresses of code
        self.states: list[FrameState] = []
        self.marks, self.at_calls, self.overrun = (GrowingColumn() for _ in range(3))
        self.end_piece, self.end_entry, self.end_row, self.end_exit, self.end_call, self.end_taken, self.end_table = (
            GrowingColumn(0) for _ in range(7)
        )
        self.piece_start, self.piece_end, self.entry, self.row_start, self.row_word = (GrowingColumn() for _ in range(5))
        self.exit_source, self.exit_target, self.exit_as_entered, self.callee, self.call_kind = (GrowingColumn() for _ in range(5))
        self.taken, self.table = (GrowingColumn() for _ in range(2))

    def columns(self) -> FindingColumns:
        """All results."""
        return FindingColumns(self.states, *[getattr(self, name).column() for name in FindingColumns._fields[1:]])

    def add_unread(self, unit: Sequence[tuple[int, int]], entries: Iterable[int]) -> None:
        """Add a function that is not analysed."""
        for start, end in unit:
            self.piece_start.append(start)
            self.piece_end.append(end)
        self.at_calls.append(0)
        self.end_function(1, entries)  # COMES_BACK

    def add(
        self, blocks: BasicBlocks, complete: bool, doubted: bool, entries: Iterable[int], takes: list[Column], places: Iterable[int]
    ) -> None:
        """Add the function that was walked. `complete`: the walk had steps enough; `doubted`: it may return from where it was not.

        `takes`: for each piece the addresses that instructions put into registers; `places`: where its jump tables lead elsewhere.
        """
        marks: cython.ulonglong = 1 if blocks.returns or doubted or not complete else 0  # COMES_BACK
        source: cython.ulonglong
        target: cython.ulonglong
        state: cython.Py_ssize_t
        piece: cython.Py_ssize_t
        facts: cython.ulonglong
        all_as_entered: cython.bint = True
        if blocks.frames is not self.frames:
            self.frames = blocks.frames
            self.numbers = {}
        for piece in range(blocks.pieces):
            self.piece_start.append(blocks.starts[piece])
            self.piece_end.append(blocks.starts[piece] + (blocks.bases[piece + 1] - blocks.bases[piece]))
        if blocks.contradiction >= 0:
            blocks.rows = 0
            marks |= 64  # CONTRADICTS
        if not complete:
            blocks.exits = []
        marks |= self.add_points(blocks)
        if blocks.rows:
            self.add_rows(blocks)
        for source, target, state in blocks.exits:
            facts = blocks.facts_of(state) >> 5 & 1  # IS_ENTRY
            self.exit_source.append(source)
            self.exit_target.append(target)
            self.exit_as_entered.append(facts)
            if not facts:
                all_as_entered = False
        if marks & 10 == 10 and all_as_entered and self.at_calls.values[self.at_calls.count - 1] & ~1 == 0:  # RETURNS, KEEPS_FRAME
            marks |= 16  # SHOWS_ITSELF
        self.add_taken(takes)
        for target in places:
            self.table.append(target)
        self.end_function(marks, entries)

    def end_function(self, marks: cython.ulonglong, entries: Iterable[int]) -> cython.int:
        for entry in entries:
            self.entry.append(entry)
        self.marks.append(marks)
        self.overrun.append(0)
        self.end_piece.append(self.piece_start.count)
        self.end_entry.append(self.entry.count)
        self.end_row.append(self.row_start.count)
        self.end_exit.append(self.exit_source.count)
        self.end_call.append(self.callee.count)
        self.end_taken.append(self.taken.count)
        self.end_table.append(self.table.count)
        return 0

    def add_points(self, blocks: BasicBlocks) -> cython.ulonglong:
        """Add what calls, returns and jumps show."""
        marks: cython.ulonglong = 8  # KEEPS_FRAME
        at_calls: cython.ulonglong = 0
        point: cython.Py_ssize_t
        after: cython.Py_ssize_t = 0  # the rows that begin at the point or before
        flow: cython.int
        facts: cython.int
        state: cython.Py_ssize_t
        one: cython.ulonglong = 1
        self.callees = {}
        for point in range(blocks.points):
            flow = blocks.flows[point] & 7
            if flow < 3 or flow > 5:  # INDIRECT, CALL, RETURN
                continue
            if blocks.notes[point] & 12:  # GOES_ON, IS_LAST
                self.note_call(blocks, point)
            elif blocks.notes[point] & 16:  # UNRESOLVED
                marks |= 1  # COMES_BACK
            while after < blocks.rows and blocks.row_start[after] <= blocks.at[point]:
                after += 1
            if after == 0 or blocks.row_end[after - 1] <= blocks.at[point]:
                continue
            state = blocks.row_state[after - 1]
            if flow == 5 and blocks.effects[point]:  # RETURN: it may authenticate, or remove arguments
                state = blocks.after(state, blocks.effects[point])
            facts = blocks.facts_of(state)
            if flow == 4:  # CALL
                if facts & 16:  # KNOWN_SP
                    at_calls |= one << (facts & 15)
                continue
            if flow == 5 or blocks.notes[point] & 16:  # RETURN, UNRESOLVED
                marks |= 2 if flow == 5 else 4  # RETURNS, JUMPS
                if not facts & 32:  # IS_ENTRY
                    marks &= ~8  # KEEPS_FRAME
            if facts & 32 and (flow == 5 or blocks.flows[point] == 19):  # IS_ENTRY; RETURN, INDIRECT with SLOT
                marks |= 32  # RETURNS_AS_ENTERED
        self.at_calls.append(at_calls)
        self.add_calls()
        return marks

    def add_calls(self) -> cython.int:
        for callee, kind in self.callees.items():
            if isinstance(callee, str):
                self.callee.append(self.outside.names[callee])
                self.call_kind.append(kind | 4)  # BY_NAME
            else:
                self.callee.append(callee)
                self.call_kind.append(kind & ~1 if callee in self.outside.never_return else kind)  # GOES_ON
        return 0

    def note_call(self, blocks: BasicBlocks, point: cython.Py_ssize_t) -> cython.int:
        """Note the callee, if it is known, and the kind of the call."""
        address: int = blocks.addresses[point]
        callee: int | str | None = None
        if blocks.flows[point] & 8:  # DIRECT
            callee = self.outside.callee(address, None) if address in self.stubs else address
        elif blocks.flows[point] & 16:  # SLOT
            if address not in self.callees_by_slot:
                self.callees_by_slot[address] = self.outside.callee(None, address)
            callee = self.callees_by_slot[address]
        if callee is not None:
            self.callees[callee] = self.callees.get(callee, 0) | (2 if blocks.notes[point] & 8 else 1)  # IS_LAST
        return 0

    def add_rows(self, blocks: BasicBlocks) -> cython.int:
        """Add the rows, with addresses. Padding between two rows that nothing reaches belongs to the first."""
        row: cython.Py_ssize_t
        piece: cython.Py_ssize_t = 0
        other: cython.Py_ssize_t
        start: cython.ulonglong
        place: cython.ulonglong
        end: cython.ulonglong
        following: cython.ulonglong
        number: cython.ulonglong
        for row in range(blocks.rows):
            start = blocks.row_start[row]
            end = blocks.row_end[row]
            while blocks.bases[piece + 1] <= start:
                piece += 1
            if row + 1 < blocks.rows:
                following = blocks.row_start[row + 1]
                other = piece
                while blocks.bases[other + 1] <= following:
                    other += 1
                if end < following and blocks.starts[other] - blocks.starts[piece] == blocks.bases[other] - blocks.bases[piece]:
                    place = end
                    while place < following and blocks.marks[place] != 1:
                        place += 1
                    if place == following:
                        end = following
            number = self.number(blocks.row_state[row])
            self.row_start.append(start - blocks.bases[piece] + blocks.starts[piece])
            self.row_word.append((end - start) << 32 | number)
        return 0

    def number(self, state: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """The number of a state of `frames` in `states`."""
        found = self.numbers.get(state)
        if found is None:
            found = len(self.states)
            self.numbers[state] = found
            self.states.append(self.frames.states[state])
        return found

    def add_taken(self, takes: list[Column]) -> cython.int:
        """Add those of the addresses that are in analysed code."""
        number: cython.Py_ssize_t
        seen: set[int] = set()
        for words in takes:
            if words:
                self.words = words
                for number in range(len(self.words)):
                    if self.is_code(self.words[number]):
                        seen.add(self.words[number])
        for address in seen:
            self.taken.append(address)
        return 0

    def is_code(self, address: cython.ulonglong) -> cython.int:
        after: cython.Py_ssize_t = bisect_right(self.code_starts, address, 0, len(self.code_starts))
        return after > 0 and address < self.code_ends[after - 1]

    def add_overrun(self, begin: cython.ulonglong, instruction: cython.ulonglong) -> bool:
        """The last function has an instruction that a function start is inside of. Return True if that instruction is reached."""
        last: cython.Py_ssize_t = self.marks.count - 1
        reached: cython.bint = self.reaches(instruction) != 0
        self.overrun.values[last] = begin
        self.marks.values[last] |= 768 if reached else 256  # OVERRUNS, OVERRUN_IS_REACHED
        return reached

    def reaches(self, address: cython.ulonglong) -> cython.int:
        """True if the last function has a row at the address."""
        row: cython.Py_ssize_t = self.row_start.count - 1
        first: cython.Py_ssize_t = self.end_row.values[self.end_row.count - 2]
        while row >= first and self.row_start.values[row] > address:
            row -= 1
        return row >= first and address - self.row_start.values[row] < self.row_word.values[row] >> 32
