"""Finds the functions in code without symbols or CFI, one after the other. Compiled."""

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
MIN_FUNCTION = 16  # bytes, on average; if functions seem smaller, beyond the first SOME, the bytes are data, or hostile
SOME = 256
ALIGNMENT = 16  # bytes: of functions after padding
ENDS = {RETURN, JUMP, INDIRECT, STOP}
SHORT_JUMP = 1 << 10  # bytes that a jump may span within a function, if no branch shows that the function reaches so far
IN_STEP = 32  # instructions before another: decoding from there meets it, even if it was cut


def sweep(context: FileContext, start: int, limit: int) -> Iterator[tuple[DecodedCode, int | None]]:
    """Return the functions of [start, limit), which begins with one. Each further one begins after the padding of the one before.

    With each function comes its instruction, or that after it, that crosses the limit, if any does.

    The sweep ends at a function without an end, at bytes that are no instruction, and after more functions than real code has.
    """
    tables = context.make_table_finder(lambda _: False)
    here = start
    number = 0
    window = context.decode(here, min(limit, here + WINDOW))
    while True:
        while (end := _end(context, tables, window, here, limit)) is None:
            if window.end - here >= MAX_UNIT:
                return
            window = context.decode(here, min(limit, here + 4 * max(WINDOW, window.end - here)))
        if window.start != here:
            piece = context.decode(here, end)
        elif window.skip_padding(end) == window.end == limit:
            piece = window
        else:
            piece = window.cut_at(end)
        yield piece, _crossing(context, piece, window, limit)
        number += 1
        if number > SOME + (end - start) // MIN_FUNCTION or _is_no_code(piece):
            return
        while (here := window.skip_padding(end)) == window.end < limit:
            end = here
            window = context.decode(here, min(limit, here + WINDOW))
        if here >= limit:
            return


def called(context: FileContext, start: int, end: int) -> set[int]:
    """Return the targets of direct calls in the code, reached or not."""
    found: set[int] = set()
    for at in range(start, end, WINDOW):
        before = min(at - start, IN_STEP_BYTES)
        window = context.decode(at - before, min(end, at + WINDOW))
        calls = window.point_numbers(CALL | DIRECT)
        found.update(window.addresses[call] for call in calls if window.at[call] >= before)
    return found


def _is_last_call(window: DecodedCode, end: int) -> bool:
    """Return True if padding up to an aligned address follows the call that ends at `end`, and no loop begins after it."""
    after = window.skip_padding(end)
    return after not in (end, window.end) and after % ALIGNMENT == 0 and after not in window.targets()


def _is_no_code(piece: DecodedCode) -> bool:
    """Return True if the piece ends with bytes that are not an instruction: they stop, and do not pad."""
    last = len(piece) - 1
    stops = piece.flows.endswith(bytes([STOP])) and piece.at[len(piece.at) - 1] == piece.offsets[last]
    return stops and piece.marks[piece.offsets[last]] != PADDING and piece.instruction(last)[2] == ".byte"


def _crossing(context: FileContext, piece: DecodedCode, window: DecodedCode, limit: int) -> int | None:
    """Return the instruction that begins before the limit and ends after it, if the limit is near the end of the piece.

    `window`: code with the same instructions, and perhaps more.
    """
    longest = context.isa.longest
    if limit - piece.end >= longest or (window.end == limit and not may_be_cut(window, longest)):
        return None
    start = piece.start + piece.offsets[max(0, len(piece) - IN_STEP)]
    tail = context.decode(start, min(limit + context.isa.longest, context.range_end(limit)))
    return None if tail.end <= limit or tail.begins(limit) else tail.instruction_start(limit)


def chunks(silent: Sequence[Range], begins: set[int]) -> Iterator[Range]:
    """Cut the ranges where functions begin, except ranges in which more seem to begin than real code has. Both ascend."""
    ordered = sorted(begins)
    for start, end in silent:
        here = start
        first, last = bisect_left(ordered, start + 1), bisect_left(ordered, end)
        if last - first > SOME + (end - start) // MIN_FUNCTION:
            last = first
        for place in range(first, last):
            yield here, ordered[place]
            here = ordered[place]
        yield here, end


def _end(context: FileContext, tables: TargetsOf, window: DecodedCode, start: int, limit: int) -> int | None:
    """Return the end of the function at `start`: no code continues after its last instruction, and no branch leads past it.

    None if that is not in the window, whose last instruction may be cut off.
    """
    furthest = start
    last = limit if window.end == limit else window.end - context.isa.longest
    number = bisect_left(window.at, start - window.start)
    while True:
        number, furthest = next_way_out(window, number, furthest, context.known_returns)
        if number == len(window.at):
            return limit if window.end == limit else None
        point = window.point(number)
        if point.flow == INDIRECT:
            furthest = max(furthest, *tables(window, point, lambda target: start <= target < limit), 0)
        is_end = point.flow in ENDS or not context.may_return(point.target, point.slot) or _is_last_call(window, point.end)
        if is_end and furthest < point.end <= last:
            return point.end
        number += 1


class WayOut(NamedTuple):
    """A point that may be the last of a function, by its number, and the furthest address that branches before it lead to."""

    number: int
    furthest: int


@cython.locals(
    marks="const unsigned char[::1]",
    at="const unsigned int[::1]",
    ends="const unsigned int[::1]",
    flows="const unsigned char[::1]",
    addresses="const unsigned long long[::1]",
)
def next_way_out(piece: DecodedCode, number: cython.Py_ssize_t, furthest: cython.ulonglong, known: dict[int, bool]) -> WayOut:
    """Return the next point from one on that leaves a function that goes no further; after the last, if there is none.

    `known`: whether calls of these targets return. One that does ends nothing, unless padding follows.
    """
    marks = piece.marks
    at = piece.at
    ends = piece.ends
    flows = piece.flows
    addresses = piece.addresses
    start: cython.ulonglong = piece.start
    end: cython.ulonglong
    target: cython.ulonglong
    flow: cython.int
    while number < len(at):
        flow = flows[number] & FLOW_MASK
        end = start + ends[number]
        if flow in (JUMP, BRANCH) and flows[number] & DIRECT:
            target = addresses[number]
            if target > furthest and (flow == BRANCH or furthest > end or target <= end or target - end < 1024):  # SHORT_JUMP
                furthest = target
        if (
            flow != NEXT
            and flow != BRANCH
            and furthest < end
            and not (
                flow == CALL
                and flows[number] & DIRECT
                and known.get(addresses[number])
                and ends[number] < len(marks)
                and marks[ends[number]] == BEGIN
            )
        ):
            break
        number += 1
    return WayOut(number, furthest)


@cython.locals(marks="const unsigned char[::1]", at="const unsigned int[::1]", flows="const unsigned char[::1]")
def may_be_cut(piece: DecodedCode, longest: cython.Py_ssize_t) -> bool:
    """Return True if the piece's last instruction may have more bytes: its rest is neither an instruction nor padding."""
    marks = piece.marks
    at = piece.at
    flows = piece.flows
    number: cython.Py_ssize_t = len(at) - 1
    while number >= 0 and at[number] + longest >= len(marks):
        if flows[number] == STOP and marks[at[number]] != PADDING:
            return True
        number -= 1
    return False
