"""Pieces of functions that the CFI describes as functions: it has the rule of an entry where jumps lead, with another frame.

Such are the fragments that a post-link optimizer cuts from a function and describes wrongly. A range is a fragment if

- nothing calls it, and neither code nor data has its address;
- all jumps to it come with one frame, which is not that of an entry, and one of them from a function that is certain;
- entered as a function, it would return with another frame than it was entered with, or jump to code of another function that has
  another frame; and with the frame of the jumps to it, that frame would be the right one.

A branch that is never taken, which compilers let lead to any code that follows, meets no more than the first two conditions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.checks.against_code.claims import SILENT
from sframegen.code.context.assumptions import Assumptions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from sframegen.checks.against_code.claims import Track
    from sframegen.code.isa.frame_state import FrameState
    from sframegen.code.whole_file.passes import Survey
    from sframegen.elf.ranges import Range


def fragments(
    found: Survey, proven: Track, functions: Sequence[Range], enters: Callable[[int], bool], entry: FrameState
) -> set[Range]:
    """Return the fragments among the ranges. `enters`: true where the CFI has an entry; `entry`: the frame that it says then."""
    jumps = found.jumps
    as_entered = {jump.target for jump in jumps if jump.as_entered}
    otherwise = {jump.target for jump in jumps if not jump.as_entered}
    suspects = otherwise - as_entered - found.referred - found.certain
    ranges = {start: (start, end) for start, end in functions if start in suspects and enters(start)}
    if not ranges or entry.sp is None:
        return set()

    def sp_at(address: int) -> int | None:
        number = proven.at(address)
        return None if number == SILENT else found.states[number].sp

    chosen = set()
    for start, one in ranges.items():
        into = [jump for jump in jumps if jump.target == start]
        sps = {sp_at(jump.source) for jump in into}
        sp = sps.pop() if len(sps) == 1 else None
        if sp is None or sp == entry.sp or found.certain.isdisjoint(jump.function for jump in into):
            continue
        leaves = [(sp_at(jump.source), sp_at(jump.target)) for jump in jumps if jump.function == start and not enters(jump.target)]
        known = [(own, other) for own, other in leaves if own is not None and other is not None]
        fits = known and all(own != other == own + sp - entry.sp for own, other in known)
        if fits or start in found.contradicting:
            chosen.add(one)
    return chosen


def as_fragments(assumptions: Assumptions, pieces: Collection[Range]) -> Assumptions:
    """Return the assumptions, except that no function begins with one of these ranges, and that jumps lead into and out of them."""
    starts = {start for start, _ in pieces}

    def enters(address: int) -> bool:
        return address not in starts and assumptions.enters(address)

    def continues(source: int, target: int) -> bool:
        leaves = any(start <= source < end and not start <= target < end for start, end in pieces)
        return target in starts or leaves or assumptions.continues(source, target)

    return Assumptions(enters, continues)
