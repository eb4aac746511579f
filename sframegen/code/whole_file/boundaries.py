"""Finds where functions end in code without symbols or CFI, one function after the other. Compiled.

A function ends after an instruction that control does not continue after, unless a branch before it leads further. The next one
begins after padding. Code is decoded in windows, which grow until the end of the function is in them.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

from sframegen.code.function.analysis import MAX_UNIT

if not cython.compiled:
    from sframegen.code.isa.effects import BEGIN, BRANCH, CALL, DIRECT, FLOW_MASK, INDIRECT, JUMP, NEXT, PADDING, RETURN, STOP
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sframegen.code.context.file_context import FileContext, TargetsOf
    from sframegen.code.decoding.decoded_code import DecodedCode
    from sframegen.elf.ranges import Range

WINDOW = 1 << 12  # bytes that are decoded at first to find a function's end
IN_STEP_BYTES = 64  # after which decoding from any byte is in step with the real instructions
MIN_FUNCTION = 16  # bytes on average: if there are more functions than that allows, the bytes are data, or hostile
MAX_SMALL_FUNCTIONS = 256  # functions that are allowed whatever the average size
ALIGNMENT = 16  # bytes: of functions after padding
ENDS = {RETURN, JUMP, INDIRECT, STOP}
SHORT_JUMP = 1 << 10  # bytes that a jump may span within a function, if no branch shows that the function reaches so far
IN_STEP_INSTRUCTIONS = 32  # decoding that begins this many instructions before another one is in step with it


def sweep_functions(context: FileContext, start: int, limit: int) -> Iterator[tuple[DecodedCode, int | None]]:
    """Yield the functions of [start, limit), which begins with one. Each further one begins after the padding of the one before.

    With each function comes the address of the instruction, in it or after it, that crosses the limit, if there is one.

    The sweep stops at a function without an end, at bytes that are not an instruction, and after more functions than code can have.
    """
    tables = context.make_table_finder(lambda _: False)
    here = start
    number = 0
    window = context.decode(here, min(limit, here + WINDOW))
    while True:
        while (end := _find_function_end(context, tables, window, here, limit)) is None:
            if window.end - here >= MAX_UNIT:
                return
            window = context.decode(here, min(limit, here + 4 * max(WINDOW, window.end - here)))
        if window.start != here:
            piece = context.decode(here, end)
        elif window.skip_padding(end) == window.end == limit:
            piece = window
        else:
            piece = window.cut_at(end)
        yield piece, _find_crossing_instruction(context, piece, window, limit)
        number += 1
        if number > MAX_SMALL_FUNCTIONS + (end - start) // MIN_FUNCTION or _ends_with_non_code(piece):
            return
        while (here := window.skip_padding(end)) == window.end < limit:
            end = here
            window = context.decode(here, min(limit, here + WINDOW))
        if here >= limit:
            return


def find_call_targets(context: FileContext, start: int, end: int) -> set[int]:
    """Return the targets of direct calls in [start, end), whether control can reach the calls or not."""
    found: set[int] = set()
    for at in range(start, end, WINDOW):
        before = min(at - start, IN_STEP_BYTES)
        window = context.decode(at - before, min(end, at + WINDOW))
        calls = window.point_numbers(CALL | DIRECT)
        found.update(window.addresses[call] for call in calls if window.at[call] >= before)
    return found


def _is_last_call(window: DecodedCode, end: int) -> bool:
    """Return True if padding to an aligned address follows the call that ends at `end`, and no jump leads to that address."""
    after = window.skip_padding(end)
    return after not in (end, window.end) and after % ALIGNMENT == 0 and after not in window.branch_targets()


def _ends_with_non_code(piece: DecodedCode) -> bool:
    """Return True if the piece ends with bytes that are neither an instruction nor padding."""
    last = len(piece) - 1
    stops = piece.flows.endswith(bytes([STOP])) and piece.at[len(piece.at) - 1] == piece.offsets[last]
    return stops and piece.marks[piece.offsets[last]] != PADDING and piece.instruction(last)[2] == ".byte"


def _find_crossing_instruction(context: FileContext, piece: DecodedCode, window: DecodedCode, limit: int) -> int | None:
    """Return the address of the instruction that begins before the limit and ends after it, if the piece ends near the limit.

    `window`: code that includes the piece.
    """
    longest = context.isa.longest
    if limit - piece.end >= longest or (window.end == limit and not may_be_cut(window, longest)):
        return None
    start = piece.start + piece.offsets[max(0, len(piece) - IN_STEP_INSTRUCTIONS)]
    tail = context.decode(start, min(limit + context.isa.longest, context.range_end(limit)))
    return None if tail.end <= limit or tail.begins(limit) else tail.instruction_start(limit)


def cut_at_starts(without_cfi: Sequence[Range], starts: set[int]) -> Iterator[Range]:
    """Cut the ranges where functions begin, except ranges in which more seem to begin than code can have. The ranges ascend."""
    ordered = sorted(starts)
    for start, end in without_cfi:
        here = start
        first, last = bisect_left(ordered, start + 1), bisect_left(ordered, end)
        if last - first > MAX_SMALL_FUNCTIONS + (end - start) // MIN_FUNCTION:
            last = first
        for index in range(first, last):
            yield here, ordered[index]
            here = ordered[index]
        yield here, end


def _find_function_end(context: FileContext, tables: TargetsOf, window: DecodedCode, start: int, limit: int) -> int | None:
    """Return the end of the function at `start`: control does not continue after it, and no branch leads past it.

    None if the end is not in the window, whose last instruction may be cut off.
    """
    furthest = start
    last = limit if window.end == limit else window.end - context.isa.longest
    number = bisect_left(window.at, start - window.start)
    while True:
        number, furthest = find_next_exit(window, number, furthest, context.known_returns)
        if number == len(window.at):
            return limit if window.end == limit else None
        point = window.point(number)
        if point.flow == INDIRECT:
            furthest = max(furthest, *tables(window, point, lambda target: start <= target < limit), 0)
        is_end = point.flow in ENDS or not context.may_return(point.target, point.slot) or _is_last_call(window, point.end)
        if is_end and furthest < point.end <= last:
            return point.end
        number += 1


class ExitPoint(NamedTuple):
    """The number of a point that may be the last of a function, and the furthest address that branches before it lead to."""

    number: int
    furthest: int


@cython.locals(
    marks="const unsigned char[::1]", at="const unsigned int[::1]", ends="const unsigned int[::1]",
    flows="const unsigned char[::1]", addresses="const unsigned long long[::1]",
)  # fmt: skip
def find_next_exit(
    piece: DecodedCode, number: cython.Py_ssize_t, furthest: cython.ulonglong, known_returns: dict[int, bool]
) -> ExitPoint:
    """Return the first point from `number` on after which the function may end; if there is none, the number after the last point.

    `known_returns`: target -> whether calls return. A call that returns ends a function only if padding follows.
    """
    marks, at, ends = piece.marks, piece.at, piece.ends
    flows, addresses = piece.flows, piece.addresses
    start: cython.ulonglong = piece.start
    end: cython.ulonglong
    target: cython.ulonglong
    flow: cython.int
    is_followed: cython.bint  # by an instruction that is not padding
    while number < len(at):
        flow = flows[number] & FLOW_MASK
        end = start + ends[number]
        if flow in (JUMP, BRANCH) and flows[number] & DIRECT:
            target = addresses[number]
            # A far jump forward may be to another function; any other jump or branch shows that the function reaches its target.
            if target > furthest and (flow == BRANCH or furthest > end or target <= end or target - end < 1024):  # SHORT_JUMP
                furthest = target
        if flow != NEXT and flow != BRANCH and furthest < end:
            is_followed = ends[number] < len(marks) and marks[ends[number]] == BEGIN
            if not (is_followed and flow == CALL and flows[number] & DIRECT and known_returns.get(addresses[number])):
                break
        number += 1
    return ExitPoint(number, furthest)


@cython.locals(marks="const unsigned char[::1]", at="const unsigned int[::1]", flows="const unsigned char[::1]")
def may_be_cut(piece: DecodedCode, longest: cython.Py_ssize_t) -> bool:
    """Return True if the piece may cut off its last instruction, because its last bytes are neither an instruction nor padding."""
    marks, at, flows = piece.marks, piece.at, piece.flows
    number: cython.Py_ssize_t = len(at) - 1
    while number >= 0 and at[number] + longest >= len(marks):
        if flows[number] == STOP and marks[at[number]] != PADDING:
            return True
        number -= 1
    return False
