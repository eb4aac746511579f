"""The places where a function may end, and where code may be cut. Compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from sframegen.code.decoding.pieces import Piece

COMPILED: bool = cython.compiled

SHORT_JUMP = 1 << 10  # bytes that a jump may span within a function, if no branch shows that the function reaches so far


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
def next_way_out(piece: Piece, number: cython.Py_ssize_t, furthest: cython.ulonglong, known: dict[int, bool]) -> WayOut:
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
        flow = flows[number] & 7
        end = start + ends[number]
        if (flow == 1 or flow == 2) and flows[number] & 8:  # JUMP, BRANCH; DIRECT
            target = addresses[number]
            if target > furthest and (flow == 2 or furthest > end or target <= end or target - end < 1024):  # SHORT_JUMP
                furthest = target
        if flow == 0 or flow == 2 or furthest >= end:  # NEXT, BRANCH
            number += 1
        elif (
            flow == 4
            and flows[number] & 8
            and known.get(addresses[number])
            and ends[number] < len(marks)
            and marks[ends[number]] == 1
        ):
            number += 1  # CALL
        else:
            break
    return WayOut(number, furthest)


@cython.locals(marks="const unsigned char[::1]", at="const unsigned int[::1]", flows="const unsigned char[::1]")
def may_be_cut(piece: Piece, longest: cython.Py_ssize_t) -> bool:
    """Return True if the piece's last instruction may have more bytes: its rest is neither an instruction nor padding."""
    marks = piece.marks
    at = piece.at
    flows = piece.flows
    number: cython.Py_ssize_t = len(at) - 1
    while number >= 0 and at[number] + longest >= len(marks):
        if flows[number] == 6 and marks[at[number]] != 2:  # STOP, PADDING_MARK
            return True
        number -= 1
    return False
