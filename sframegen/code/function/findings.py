"""Collects the results of walks through functions in columns. Compiled.

A function is a unit of one or several pieces of code. A point is an instruction that touches the stack or the flow of control. From
the rows, exits and notes of BasicBlocks, `Findings.add` derives the function's marks (marks.py), its calls and its rows.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if not cython.compiled:
    from bisect import bisect_right

    from sframegen.code.function.marks import (
        BY_NAME,
        COMES_BACK,
        CONTRADICTS,
        ENDS,
        GOES_ON,
        IS_CALLED,
        IS_LAST,
        JUMPS,
        KEEPS_FRAME,
        OVERRUN_IS_REACHED,
        OVERRUNS,
        RETURNS,
        RETURNS_AS_ENTERED,
        SHOWS_ITSELF,
        UNRESOLVED,
    )
    from sframegen.code.isa.effects import BEGIN, CALL, DIRECT, FLOW_MASK, INDIRECT, IS_ENTRY, KNOWN_SP, RETURN, SLOT
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sframegen.base.columns import Column
    from sframegen.code.context.file_context import FileContext
    from sframegen.code.function.blocks import BasicBlocks
    from sframegen.code.isa.effects import FrameState
    from sframegen.elf.columns import Spans

END_PREFIX = "end_"  # of the names of columns that have one entry more than there are functions


class FindingColumns(NamedTuple):
    """Results of functions. All columns are array("Q").

    Those that begin with `end_` have one entry more than there are functions: function n has x[end_x[n]] up to x[end_x[n + 1]].
    """

    states: list[FrameState]
    marks: array[int]  #: of each function: FunctionMarks
    at_calls: array[int]  #: bit n is set if SP minus the CFA, modulo 16, is n at a call
    overrun: array[int]  #: the function start that is inside an instruction of it, or 0
    end_piece: array[int]
    piece_start: array[int]
    piece_end: array[int]
    end_entry: array[int]
    entry: array[int]  #: where it is called, with the frame that functions are entered with
    end_row: array[int]
    row_start: array[int]
    row_word: array[int]  #: size << 32 | the state's number in `states`
    end_exit: array[int]  #: jumps and falls out of it
    exit_source: array[int]
    exit_target: array[int]
    exit_as_entered: array[int]  #: 1: with the frame that functions are entered with
    end_call: array[int]
    callee: array[int]  #: distinct known callees
    call_kind: array[int]  #: CallKinds
    end_taken: array[int]
    taken: array[int]  #: addresses of code that instructions put into registers
    end_table: array[int]
    table: array[int]  #: addresses in other units that jump tables lead to


def make_empty_findings() -> FindingColumns:
    return FindingColumns([], *(array("Q", [0] * name.startswith(END_PREFIX)) for name in FindingColumns._fields[1:]))


class WordColumn:
    """A column that grows. Appending to an array would be a Python call, of which each function would need dozens."""

    def __init__(self, *values: int) -> None:
        self.values = array("Q", bytes(8 * 64))
        self.count = 0
        for value in values:
            self.append(value)

    def append(self, value: cython.ulonglong) -> cython.int:
        if self.count == len(self.values):
            self.values = self.to_array() * 2
        self.values[self.count] = value
        self.count += 1
        return 0

    def to_array(self) -> array[int]:
        found = array("Q")
        found.frombytes(memoryview(self.values[: self.count]).cast("B"))
        return found


class Findings:
    """Collects the results of functions after they were walked. `code`: the analysed ranges; code.number(address) is -1 outside."""

    def __init__(self, context: FileContext, code: Spans) -> None:
        self.context: Any = context
        self.stubs = context.stubs
        self.code = code
        self.frames: Any = None
        self.numbers: dict[int, int] = {}  # state number in `frames` -> number in `states`
        self.callees: dict[int | str, int] = {}  # callees of the current function -> CallKinds
        self.call_alignments = 0  # of the current function, as `at_calls` in the columns
        self.words: Column = array("Q")  # of `add_taken`: may be addresses of code
        self.states: list[FrameState] = []
        self.marks, self.at_calls, self.overrun = (WordColumn() for _ in range(3))
        self.end_piece, self.end_entry, self.end_row, self.end_exit, self.end_call, self.end_taken, self.end_table = (
            WordColumn(0) for _ in range(7)
        )
        self.piece_start, self.piece_end, self.entry, self.row_start, self.row_word = (WordColumn() for _ in range(5))
        self.exit_source, self.exit_target, self.exit_as_entered, self.callee, self.call_kind = (WordColumn() for _ in range(5))
        self.taken, self.table = (WordColumn() for _ in range(2))

    def columns(self) -> FindingColumns:
        return FindingColumns(self.states, *[getattr(self, name).to_array() for name in FindingColumns._fields[1:]])

    def add_unanalysed(self, unit: Sequence[tuple[int, int]], entries: Iterable[int]) -> None:
        """Add a function that is too large to be walked: it may return, and has no rows."""
        for start, end in unit:
            self.piece_start.append(start)
            self.piece_end.append(end)
        self.call_alignments = 0
        self.finish_function(COMES_BACK, entries)

    def add(
        self, blocks: BasicBlocks, returns_elsewhere: bool, entries: Iterable[int], taken: Sequence[Column], table: Iterable[int]
    ) -> None:
        """Add the function that was walked. `returns_elsewhere`: it may return from code that was not walked.

        `taken`: for each piece the addresses that instructions put into registers; `table`: as in FindingColumns.
        """
        marks: cython.ulonglong = COMES_BACK if blocks.returns or returns_elsewhere or not blocks.complete else 0
        source: cython.ulonglong
        target: cython.ulonglong
        state: cython.Py_ssize_t
        piece: cython.Py_ssize_t
        is_as_entered: cython.bint
        all_as_entered: cython.bint = True
        if blocks.frames is not self.frames:
            self.frames = blocks.frames
            self.numbers = {}
        for piece in range(blocks.pieces):
            self.piece_start.append(blocks.starts[piece])
            self.piece_end.append(blocks.starts[piece] + (blocks.bases[piece + 1] - blocks.bases[piece]))
        if blocks.contradiction >= 0:
            blocks.rows = 0
            marks |= CONTRADICTS
        marks |= self.add_points(blocks)
        if blocks.rows:
            self.add_rows(blocks)
        for source, target, state in blocks.exits if blocks.complete else []:
            is_as_entered = blocks.facts_of(state) & IS_ENTRY != 0
            self.exit_source.append(source)
            self.exit_target.append(target)
            self.exit_as_entered.append(int(is_as_entered))
            all_as_entered = all_as_entered and is_as_entered
        if marks & RETURNS and marks & KEEPS_FRAME and all_as_entered and self.call_alignments & ~1 == 0:
            marks |= SHOWS_ITSELF
        self.add_taken(taken)
        for target in table:
            self.table.append(target)
        self.finish_function(marks, entries)

    def finish_function(self, marks: cython.ulonglong, entries: Iterable[int]) -> cython.int:
        """End the current function: its elements of each column end here."""
        for entry in entries:
            self.entry.append(entry)
        self.marks.append(marks)
        self.at_calls.append(self.call_alignments)
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
        """Add the results of calls, and set `call_alignments`. Return the marks of returns and jumps."""
        marks: cython.ulonglong = KEEPS_FRAME
        point: cython.Py_ssize_t
        after: cython.Py_ssize_t = 0  # the first row that begins after the point
        flow: cython.int
        facts: cython.int
        state: cython.Py_ssize_t
        bit: cython.ulonglong = 1  # of 64 bits, to be shifted
        self.callees = {}
        self.call_alignments = 0
        for point in range(blocks.points):
            flow = blocks.flows[point] & FLOW_MASK
            if flow not in (INDIRECT, CALL, RETURN):
                continue
            if blocks.notes[point] & (IS_CALLED | IS_LAST):
                self.note_call(blocks, point)
            elif blocks.notes[point] & UNRESOLVED:
                marks |= COMES_BACK
            while after < blocks.rows and blocks.row_start[after] <= blocks.at[point]:
                after += 1
            if after == 0 or blocks.row_end[after - 1] <= blocks.at[point]:
                continue
            state = blocks.row_state[after - 1]
            if flow == RETURN and blocks.effects[point]:  # a return may authenticate its address, or pop arguments
                state = blocks.state_after(state, blocks.effects[point])
            facts = blocks.facts_of(state)
            if flow == CALL:
                if facts & KNOWN_SP:
                    self.call_alignments |= bit << (facts & 15)  # SP modulo 16
                continue
            if flow == RETURN or blocks.notes[point] & UNRESOLVED:
                marks |= RETURNS if flow == RETURN else JUMPS
                if not facts & IS_ENTRY:
                    marks &= ~KEEPS_FRAME
            if facts & IS_ENTRY and (flow == RETURN or blocks.flows[point] == INDIRECT | SLOT):
                marks |= RETURNS_AS_ENTERED
        self.add_calls()
        return marks

    def add_calls(self) -> cython.int:
        """Add the known callees of the current function, each once with its CallKinds."""
        for callee, kind in self.callees.items():
            if isinstance(callee, str):
                self.callee.append(self.context.names[callee])
                self.call_kind.append(kind | BY_NAME)
            else:
                self.callee.append(callee)
                self.call_kind.append(kind & ~GOES_ON if callee in self.context.never_returning else kind)
        return 0

    def note_call(self, blocks: BasicBlocks, point: cython.Py_ssize_t) -> cython.int:
        """Record the callee of a call, if it is known, and the call's kind."""
        address: int = blocks.addresses[point]
        callee: int | str | None = None
        if blocks.flows[point] & DIRECT:
            callee = self.context.resolve_callee(address, None) if address in self.stubs else address
        elif blocks.flows[point] & SLOT:
            callee = self.context.resolve_callee(None, address)
        if callee is not None:
            self.callees[callee] = self.callees.get(callee, 0) | (ENDS if blocks.notes[point] & IS_LAST else GOES_ON)
        return 0

    def add_rows(self, blocks: BasicBlocks) -> cython.int:
        """Add the rows, with addresses. Padding between two rows that is never reached belongs to the first."""
        row: cython.Py_ssize_t
        piece: cython.Py_ssize_t = 0
        next_piece: cython.Py_ssize_t
        is_gapless: cython.bint  # the next row follows in memory, too
        start: cython.ulonglong
        padding_end: cython.ulonglong
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
                next_piece = piece
                while blocks.bases[next_piece + 1] <= following:
                    next_piece += 1
                is_gapless = blocks.starts[next_piece] - blocks.starts[piece] == blocks.bases[next_piece] - blocks.bases[piece]
                if end < following and is_gapless:
                    padding_end = end
                    while padding_end < following and blocks.marks[padding_end] != BEGIN:
                        padding_end += 1
                    if padding_end == following:
                        end = following
            number = self.column_state(blocks.row_state[row])
            self.row_start.append(start - blocks.bases[piece] + blocks.starts[piece])
            self.row_word.append((end - start) << 32 | number)
        return 0

    def column_state(self, state: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return the number in `states` for a state of `frames`."""
        found = self.numbers.get(state)
        if found is None:
            found = len(self.states)
            self.numbers[state] = found
            self.states.append(self.frames.states[state])
        return found

    def add_taken(self, taken: Sequence[Column]) -> cython.int:
        """Add those of the addresses that are in analysed code."""
        number: cython.Py_ssize_t
        in_code: set[int] = set()
        for words in taken:
            if words:
                self.words = words
                for number in range(len(self.words)):
                    if self.code.number(self.words[number]) >= 0:
                        in_code.add(self.words[number])
        for address in in_code:
            self.taken.append(address)
        return 0

    def add_overrun(self, begin: cython.ulonglong, instruction: cython.ulonglong) -> bool:
        """Record that the function start `begin` is inside an instruction of the last function. Return True if that is reached."""
        last: cython.Py_ssize_t = self.marks.count - 1
        first: cython.Py_ssize_t = self.end_row.values[last]
        row: cython.Py_ssize_t = bisect_right(self.row_start.values, instruction, first, self.row_start.count) - 1
        reached: cython.bint = row >= first and instruction - self.row_start.values[row] < self.row_word.values[row] >> 32
        self.overrun.values[last] = begin
        self.marks.values[last] |= OVERRUNS | OVERRUN_IS_REACHED if reached else OVERRUNS
        return reached
