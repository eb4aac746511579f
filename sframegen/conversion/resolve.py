"""Which FDE describes which code, where FDEs overlap or lie outside of code. Compiled.

The policy: at each address the FDE with the greatest start counts, as a binary search over `.eh_frame_hdr` finds it; of several
with the same start the first in its section. What an FDE loses so, even after the end of the one that takes it, is left out.
FDEs that are empty, outside of executable segments, larger than 4 GiB or at an address that is not known are ignored. All are
counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

from cfi.rules import UNKNOWN_START

if TYPE_CHECKING:
    from sframegen.base.columns import Column, Fdes
    from sframegen.elf.columns import Spans

COMPILED: bool = cython.compiled

# What is counted in `ignored`, in this order; the sentences are what users read.
IGNORED = (
    "empty",
    "outside of executable segments",
    "larger than 4 GiB",
    "a second one for the same code",
    "cut short by the next one",
    "at an address that is not known",
)


@cython.locals(start="const unsigned long long[::1]")
def ascends(start: Column) -> bool:
    """True if a column is sorted."""
    i: cython.Py_ssize_t
    for i in range(1, len(start)):
        if start[i - 1] > start[i]:
            return False
    return True


@cython.locals(
    start="const unsigned long long[::1]",
    order="unsigned int[::1]",
    spare="unsigned int[::1]",
    places="unsigned int[::1]",
)
def sort(start: Column, first: cython.Py_ssize_t, order: Column, spare: Column, places: Column) -> None:
    """Fills `order` with `first` and the numbers that follow, sorted by what stands there in `start`; stable.

    `spare`: as long; `places`: 2048 entries.
    """
    shift: cython.int
    i: cython.Py_ssize_t
    digit: cython.Py_ssize_t
    count: cython.Py_ssize_t
    total: cython.Py_ssize_t
    for i in range(len(order)):
        order[i] = first + i
    for shift in range(0, 64, 11):  # by eleven bits a time, the lowest first
        for digit in range(2048):
            places[digit] = 0
        for i in range(len(order)):
            places[(start[order[i]] >> shift) & 2047] += 1
        total = 0
        for digit in range(2048):
            count = places[digit]
            places[digit] = total
            total += count
            if count == len(order):  # all are equal here
                total = -1
                break
        if total < 0:
            continue
        for i in range(len(order)):
            digit = (start[order[i]] >> shift) & 2047
            spare[places[digit]] = order[i]
            places[digit] += 1
        for i in range(len(order)):
            order[i] = spare[i]


@cython.locals(values="const unsigned long long[::1]", order="const unsigned int[::1]", ordered="unsigned long long[::1]")
def pick(values: Column, order: Column, ordered: Column) -> None:
    """Fills `ordered` with the values at the places that `order` names."""
    i: cython.Py_ssize_t
    for i in range(len(order)):
        ordered[i] = values[order[i]]


class PieceColumns:
    """The code that FDEs describe, by address: number of the FDE, start and end of the code."""

    def __init__(self, fde: Column, start: Column, end: Column) -> None:
        self.fde = fde
        self.start = start
        self.end = end


@cython.locals(
    order="const unsigned int[::1]",
    ignored="unsigned long long[::1]",
    lost="unsigned int[::1]",
    start="unsigned long long[::1]",
    size="unsigned long long[::1]",
)
def resolve(order: Column, fdes: Fdes, code: Spans, pieces: PieceColumns, ignored: Column, lost: Column) -> int:
    """Fills the pieces of code that remain, by address, and returns their number.

    `order`: FDE numbers by start, stable; empty if the FDEs are in that order. `code`: the executable ranges. `pieces` and `lost`
    have room for as many as FDEs; `lost` gets the FDEs that are counted in `ignored`, without the empty ones.
    """
    start = fdes.start
    size = fdes.size
    count: cython.Py_ssize_t = 0
    losses: cython.Py_ssize_t = 0
    i: cython.Py_ssize_t
    fde: cython.Py_ssize_t
    what: cython.Py_ssize_t
    place: cython.Py_ssize_t = 0
    unknown: cython.ulonglong = UNKNOWN_START
    for i in range(len(order) or len(start)):
        fde = order[i] if len(order) else i
        while place < len(code.end) and code.end[place] <= start[fde]:
            place += 1
        what = -1
        if size[fde] == 0:
            what = 0
        elif start[fde] == unknown:
            what = 5
        elif place == len(code.end) or start[fde] < code.start[place] or size[fde] > code.end[place] - start[fde]:
            what = 1
        elif size[fde] >> 32:
            what = 2
        elif count and pieces.start[count - 1] == start[fde]:
            what = 3
        elif count and pieces.end[count - 1] > start[fde]:
            what = 4
            pieces.end[count - 1] = start[fde]
        if what >= 0:
            ignored[what] += 1
        if what > 0:
            lost[losses] = pieces.fde[count - 1] if what == 4 else fde
            losses += 1
        if what < 0 or what == 4:
            pieces.fde[count] = fde
            pieces.start[count] = start[fde]
            pieces.end[count] = start[fde] + size[fde]
            count += 1
    return count
