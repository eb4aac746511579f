"""Decides which FDE describes which code if FDEs overlap or lie outside of code. Compiled.

At each address the FDE with the greatest start counts, because a binary search over `.eh_frame_hdr` finds that one; of several
with the same start, the first in its section counts. If one FDE begins inside another, the rest of the outer FDE is left out, even
the code after the end of the inner one. Other FDEs are ignored and counted for the reasons below.
"""

from __future__ import annotations

from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

from cfi.rules import UNKNOWN_START

if TYPE_CHECKING:
    from sframegen.base.columns import Column, Fdes
    from sframegen.elf.columns import Spans

# Why FDEs are ignored or cut short. Users read these texts; compiled code identifies a reason by its index here.
IGNORE_REASONS = (
    "empty",
    "outside of executable segments",
    "larger than 4 GiB",
    "a second one for the same code",
    "cut short by the next one",
    "at an address that is not known",
)


class FdeRanges(NamedTuple):
    """The ranges of code that FDEs describe, ascending and disjoint: columns of FDE numbers, start and end addresses."""

    fde: Column
    start: Column
    end: Column


@cython.locals(
    order="const unsigned int[::1]", reason_counts="unsigned long long[::1]", ignored_fdes="unsigned int[::1]",
    start="unsigned long long[::1]", size="unsigned long long[::1]", range_fde="unsigned int[::1]",
    range_start="unsigned long long[::1]", range_end="unsigned long long[::1]",
)  # fmt: skip
def resolve_overlaps(
    order: Column, fdes: Fdes, code: Spans, fde_ranges: FdeRanges, reason_counts: Column, ignored_fdes: Column
) -> int:
    """Fills `fde_ranges` with the code that each FDE describes, and returns the number of ranges.

    `order`: FDE numbers sorted stably by start; empty if the FDEs are in that order. `code`: the executable ranges. `fde_ranges`
    and `ignored_fdes` have room for all FDEs. `ignored_fdes` gets the FDEs counted in `reason_counts`, except for empty ones.
    """
    start = fdes.start
    size = fdes.size
    range_fde, range_start, range_end = fde_ranges
    count: cython.Py_ssize_t = 0
    ignored_count: cython.Py_ssize_t = 0
    i: cython.Py_ssize_t
    fde: cython.Py_ssize_t
    reason: cython.Py_ssize_t
    span: cython.Py_ssize_t = 0
    unknown: cython.ulonglong = UNKNOWN_START
    for i in range(len(order) or len(start)):
        fde = order[i] if len(order) else i
        while span < len(code.end) and code.end[span] <= start[fde]:
            span += 1
        reason = -1
        if size[fde] == 0:
            reason = 0  # empty
        elif start[fde] == unknown:
            reason = 5  # at an address that is not known
        elif span == len(code.end) or start[fde] < code.start[span] or size[fde] > code.end[span] - start[fde]:
            reason = 1  # outside of executable segments
        elif size[fde] >> 32:
            reason = 2  # larger than 4 GiB
        elif count and range_start[count - 1] == start[fde]:
            reason = 3  # a second one for the same code
        elif count and range_end[count - 1] > start[fde]:
            reason = 4  # the FDE before is cut short
            range_end[count - 1] = start[fde]
        if reason >= 0:
            reason_counts[reason] += 1
        if reason > 0:
            ignored_fdes[ignored_count] = range_fde[count - 1] if reason == 4 else fde
            ignored_count += 1
        if reason < 0 or reason == 4:
            range_fde[count] = fde
            range_start[count] = start[fde]
            range_end[count] = start[fde] + size[fde]
            count += 1
    return count
