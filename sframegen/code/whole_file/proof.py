"""Finds the functions that are proven or certain, and their rows. Compiled.

A function is proven if it is walked from the frame of an entry, each of its returns and of its jumps to other code finds that frame
again, and the targets of these jumps expect it. Because of code that is not a function, more is required:
- If only the end of another function shows where it begins, it must return.
- If it only jumps, it must reach a function that returns, or be called: labels of computed gotos jump with a frame that is not
  theirs, and so does code with a stack of its own, such as Haskell's.
- SP must have the same alignment at all calls, and that of the ABI if nothing leads to the function: code after a call that does
  not return, or where an exception lands, has another frame.
- If it never returns, as the function that calls main, something must lead to it, calls must push the return address, and SP must
  have the ABI's alignment at all its calls: at a label inside another function, SP has another one.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if not cython.compiled:
    from sframegen.code.function.marks import BY_NAME, COMES_BACK, CONTRADICTS, JUMPS, KEEPS_FRAME, RETURNS, RETURNS_AS_ENTERED
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sframegen.base.columns import Bytes, Column
    from sframegen.code.context.file_context import FileContext
    from sframegen.code.whole_file.evidence import Evidence
    from sframegen.elf.columns import Spans
    from sframegen.elf.ranges import Range


class Proof:
    """Decides which functions are proven. `owner`: the function of each range, or -1; `as_entered`: 1 for states of an entry.

    `pushes_ra`: calls leave the return address on the stack.
    """

    def __init__(self, ranges: Spans, owner: Column, as_entered: Bytes, *, pushes_ra: bool) -> None:
        self.ranges = ranges
        self.owner = owner
        self.as_entered = as_entered
        self.pushes_ra = pushes_ra

    def function_at(self, address: cython.ulonglong) -> cython.Py_ssize_t:
        number: cython.Py_ssize_t = self.ranges.number(address)
        return -1 if number < 0 else self.owner[number]

    def keeps_entry_frame(self, evidence: Evidence, number: cython.Py_ssize_t) -> cython.int:
        """Returns True if the function always leaves with the frame that functions are entered with."""
        marks: cython.ulonglong = evidence.marks[number]
        # Bit n: SP = CFA + n modulo 16 at a call. Bit 0 is the ABI's alignment.
        calls: cython.ulonglong = evidence.at_calls[number]
        has_one_alignment: cython.bint = calls & (calls - 1) == 0
        has_exits: cython.bint = evidence.end_exit[number] != evidence.end_exit[number + 1]
        if marks & (CONTRADICTS | KEEPS_FRAME) != KEEPS_FRAME or not evidence.exits_as_entered(number):
            return 0
        if evidence.has_known_entry(number):
            if not has_exits and marks & (COMES_BACK | RETURNS | JUMPS) == 0:  # it never returns
                return self.pushes_ra and calls == 1
            return has_one_alignment and (has_exits or marks & (RETURNS | JUMPS) != 0)
        return calls & ~1 == 0 and marks & RETURNS != 0

    def select_proven(
        self, evidence: Evidence, chosen: list[int], called: set[int], is_analysed: Callable[[int], bool]
    ) -> list[int]:
        """Return those of the functions that are proven. A function that jumps to one that is not proven is not proven either.

        Candidates keep the frame of the entry. A candidate is refuted if it jumps to anything but a function, or to a refuted one.
        It is grounded if it returns, never leaves, is called and jumps to anywhere, or jumps to a function outside of the analysed
        code. Grounded candidates that are not refuted are proven, and so are those that jump to them.
        `called`: targets of calls; `is_analysed`: true for addresses in analysed code.
        """
        number: cython.Py_ssize_t
        other: cython.Py_ssize_t
        index: cython.Py_ssize_t
        state: cython.Py_ssize_t
        marks: cython.ulonglong
        never_leaves: cython.bint
        is_entry: cython.bint
        remaining = bytearray(evidence.count)  # 1: a candidate that is neither refuted nor proven yet
        jumping_to: dict[int, list[int]] = {}  # function -> candidates that jump to it
        refuted: list[int] = []  # candidates that jump to these are refuted as well
        grounded: list[int] = []  # proven unless they are refuted
        candidates = [number for number in chosen if self.keeps_entry_frame(evidence, number)]
        for number in candidates:
            remaining[number] = 1
            marks = evidence.marks[number]
            never_leaves = (
                evidence.end_exit[number] == evidence.end_exit[number + 1] and marks & (COMES_BACK | RETURNS | JUMPS) == 0
            )
            if never_leaves or marks & RETURNS or (marks & JUMPS and evidence.has_entry_in(number, called)):
                grounded.append(number)
        for number in candidates:
            for index in range(evidence.end_exit[number], evidence.end_exit[number + 1]):
                other = self.function_at(evidence.exit_target[index])
                if other < 0:
                    grounded.append(number)
                    is_entry = evidence.exit_target[index] in evidence.entries and not is_analysed(evidence.exit_target[index])
                else:
                    jumping_to.setdefault(other, []).append(number)
                    state = evidence.state_at(other, evidence.exit_target[index])
                    is_entry = remaining[other] != 0 and state >= 0 and self.as_entered[state] != 0
                if not is_entry and remaining[number]:
                    remaining[number] = 0
                    refuted.append(number)
        while refuted:
            for number in jumping_to.pop(refuted.pop(), ()):
                if remaining[number]:
                    remaining[number] = 0
                    refuted.append(number)
        proven: list[int] = []
        while grounded:
            number = grounded.pop()
            if remaining[number]:
                remaining[number] = 0
                proven.append(number)
                grounded.extend(jumping_to.get(number, ()))
        return proven


@cython.locals(
    number="Py_ssize_t", index="Py_ssize_t", range_number="Py_ssize_t", start="unsigned long long", end="unsigned long long"
)
def map_ranges_to_functions(evidence: Evidence, ranges: Spans) -> array[int]:
    """Return the number of each range's function, or -1."""
    found = array("q", [-1]) * len(ranges.start)
    for number in range(evidence.count):
        if evidence.live[number]:
            for index in range(evidence.end_piece[number], evidence.end_piece[number + 1]):
                start, end = evidence.piece_start[index], evidence.piece_end[index]
                range_number = ranges.number(start)
                if range_number >= 0 and ranges.start[range_number] == start and ranges.end[range_number] == end:
                    found[range_number] = number
    return found


@cython.locals(owner="const long long[::1]", chosen="const unsigned char[::1]")
def collect_code(ranges: Spans, owner: Column, chosen: Bytes) -> list[Range]:
    """Return the ranges of the chosen functions, ascending. Adjacent ranges of one function are joined. `owner`: as in Proof."""
    number: cython.Py_ssize_t
    function: cython.Py_ssize_t
    last: cython.Py_ssize_t = -1
    start: cython.ulonglong = 0
    end: cython.ulonglong = 0
    found: list[Range] = []
    for number in range(len(ranges.start)):
        function = owner[number]
        if function >= 0 and chosen[function]:
            if function == last and end == ranges.start[number]:
                found.pop()
            else:
                start = ranges.start[number]
            end = ranges.end[number]
            last = function
            found.append((start, end))
    return found


@cython.locals(number="Py_ssize_t", index="Py_ssize_t")
def find_certain_starts(evidence: Evidence, chosen: Iterable[int], context: FileContext) -> set[int]:
    """Return the starts of the ranges of functions that are called, or that return or jump to called ones with an entry's frame."""
    called: set[int] = set()
    names: set[int] = set()
    found: set[int] = set()
    for number in chosen:
        for index in range(evidence.end_call[number], evidence.end_call[number + 1]):
            (names if evidence.call_kind[index] & BY_NAME else called).add(evidence.callee[index])
    for number in chosen:
        is_certain = evidence.marks[number] & RETURNS_AS_ENTERED != 0 or evidence.has_entry_in(number, called)
        for index in range(evidence.end_exit[number], evidence.end_exit[number + 1]):
            if is_certain:
                break
            if evidence.exit_as_entered[index]:
                callee: int | str | None = evidence.exit_target[index]
                if callee in context.stubs:
                    callee = context.resolve_callee(evidence.exit_target[index], None)
                is_certain = context.names[callee] in names if isinstance(callee, str) else callee in called
        if is_certain:
            for index in range(evidence.end_piece[number], evidence.end_piece[number + 1]):
                found.add(evidence.piece_start[index])
    return found


@cython.locals(
    owner="const long long[::1]", chosen="const unsigned char[::1]", start="unsigned long long[::1]",
    end="unsigned long long[::1]", state="unsigned int[::1]",
)  # fmt: skip
def collect_rows(evidence: Evidence, ranges: Spans, owner: Column, chosen: Bytes) -> tuple[array[int], array[int], array[int]]:
    """Return (starts, ends, numbers of states) of all rows of the chosen functions, ascending. `owner`: as in Proof."""
    number: cython.Py_ssize_t
    function: cython.Py_ssize_t
    first: cython.Py_ssize_t
    row: cython.Py_ssize_t
    index: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t = 0
    for number in range(len(ranges.start)):
        function = owner[number]
        if function >= 0 and chosen[function]:
            count += evidence.first_row_at(function, ranges.end[number]) - evidence.first_row_at(function, ranges.start[number])
    starts, ends, states = array("Q", [0]) * count, array("Q", [0]) * count, array("I", [0]) * count
    start, end, state = starts, ends, states
    for number in range(len(ranges.start)):
        function = owner[number]
        if function >= 0 and chosen[function]:
            first = evidence.first_row_at(function, ranges.start[number])
            for row in range(first, evidence.first_row_at(function, ranges.end[number])):
                start[index] = evidence.row_start[row]
                end[index] = evidence.row_start[row] + (evidence.row_word[row] >> 32)
                state[index] = evidence.row_word[row] & 0x7FFFFFFF  # below the size, as FindingColumns has it
                index += 1
    return starts, ends, states
