"""Where functions are in code of which nothing tells where they end: from begin to end, one after the other."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from sframegen.code.decoding.instruction_columns import DIRECT
from sframegen.code.function.function import MAX_UNIT
from sframegen.code.isa.effects import Flow

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sframegen.code.context.file_context import FileContext, Range, TargetsOf
    from sframegen.code.decoding.pieces import Piece

WINDOW = 1 << 12  # bytes that are decoded at first to find a function's end
IN_STEP_BYTES = 64  # behind which decoding from anywhere gives instructions as they are
MIN_FUNCTION = 16  # bytes, on average; where there seem to be more than that and SOME functions, there is data, or malice
SOME = 256
ALIGNMENT = 16  # bytes: of functions that padding is before
SHORT_JUMP = 1 << 10  # bytes that a jump spans within a function that no branch shows to reach so far
STOP = bytes([Flow.STOP])
LEADS = {Flow.JUMP, Flow.BRANCH}
ENDS = {Flow.RETURN, Flow.JUMP, Flow.INDIRECT, Flow.STOP}
IN_STEP = 32  # instructions before another: decoding from there meets it, even if it was cut
FLOW = 7  # the bits of a Flow


def sweep(context: FileContext, start: int, limit: int) -> Iterator[Piece]:
    """The functions of [start, limit), which begins with one. Those behind it begin behind the padding that follows another.

    What seems to have no end ends the sweep, and so do bytes that are no instruction, and more functions than real code has.
    """
    tables = context.tables(lambda _: False)
    here = start
    number = 0
    window = context.decode(here, min(limit, here + WINDOW))
    while True:
        while (end := _end(context, tables, window, here, limit)) is None:
            if window.end - here >= MAX_UNIT:
                return
            window = context.decode(here, min(limit, here + 4 * max(WINDOW, window.end - here)))
        is_all = window.start == here and window.behind_padding(end) == window.end == limit
        piece = window if is_all else context.decode(here, end)
        yield piece
        number += 1
        if number > SOME + (end - start) // MIN_FUNCTION or _is_no_code(piece):
            return
        while (here := window.behind_padding(end)) == window.end < limit:
            end = here
            window = context.decode(here, min(limit, here + WINDOW))
        if here >= limit:
            return


def called(context: FileContext, start: int, end: int) -> set[int]:
    """Targets of direct calls in code that is decoded from there on, whether it is reached or not."""
    found: set[int] = set()
    for at in range(start, end, WINDOW):
        before = min(at - start, IN_STEP_BYTES)
        window = context.decode(at - before, min(end, at + WINDOW))
        calls = window.numbers_of(Flow.CALL | 1 << DIRECT)
        found.update(window.addresses[call] for call in calls if window.at[call] >= before)
    return found


def _is_last_call(window: Piece, end: int) -> bool:
    """Whether padding up to where a function could begin follows a call that ends there, and no loop begins behind it."""
    behind = window.behind_padding(end)
    return behind not in (end, window.end) and behind % ALIGNMENT == 0 and behind not in window.targets()


def _is_no_code(piece: Piece) -> bool:
    """Whether what it ends with is no instruction."""
    return piece.flows[-1:] == STOP and piece.instruction(len(piece) - 1)[2] == ".byte"


def crossing(context: FileContext, piece: Piece, limit: int) -> int | None:
    """The instruction that begins before the limit, which is near the piece's end, and goes on behind it."""
    if limit - piece.end >= context.isa.longest:
        return None
    start = piece.start + piece.offsets[max(0, len(piece) - IN_STEP)]
    tail = context.decode(start, min(limit + context.isa.longest, context.limit(limit)))
    return None if tail.end <= limit or tail.begins(limit) else tail.begin(limit)


def chunks(silent: Sequence[Range], begins: set[int]) -> Iterator[Range]:
    """The ranges, cut where functions begin, but for those in which more seem to begin than real code has. Both ascend."""
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


def _end(context: FileContext, tables: TargetsOf, window: Piece, start: int, limit: int) -> int | None:
    """Behind the first instruction from `start` on behind which nothing goes on, and over which no branch before it leads.

    None where that is not in the window, whose last instruction may be cut off.
    """
    furthest = start
    last = limit if window.end == limit else window.end - context.isa.longest
    for number in range(bisect_left(window.at, start - window.start), len(window.at)):
        flow = window.flows[number] & FLOW
        if not flow:
            continue
        end = window.start + window.ends[number]
        if flow in LEADS and window.flows[number] & 1 << DIRECT:
            target = window.addresses[number]
            if target > furthest and (flow == Flow.BRANCH or furthest > end or target - end < SHORT_JUMP):
                furthest = target
        if furthest >= end:
            continue
        point = window.point(number)
        if flow == Flow.INDIRECT:
            furthest = max(furthest, *tables(window, point, lambda target: start <= target < limit), 0)
        is_end = flow in ENDS or (
            flow == Flow.CALL and (not context.returns(point.target, point.slot) or _is_last_call(window, end))
        )
        if is_end and furthest < end <= last:
            return end
    return limit if window.end == limit else None
