"""Decides which FDE describes which code if FDEs overlap or lie outside of code. Compiled.

The policy: at each address the FDE with the greatest start counts, which a binary search over `.eh_frame_hdr` finds; of several
with the same start the first in its section counts. The rest of an FDE that is cut by another one is left out, even after the end
of the other. FDEs that are empty, outside of executable segments, larger than 4 GiB or at an unknown address are ignored, and
counted.
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

# The reasons that `ignored` counts, in its order. Users read these texts.
IGNORED = (
    "empty",
    "outside of executable segments",
    "larger than 4 GiB",
    "a second one for the same code",
    "cut short by the next one",
    "at an address that is not known",
)


class Pieces(NamedTuple):
    """The code that FDEs describe, by address: columns of FDE numbers, start and end addresses."""

    fde: Column
    start: Column
    end: Column


@cython.locals(
    order="const unsigned int[::1]",
    ignored="unsigned long long[::1]",
    lost="unsigned int[::1]",
    start="unsigned long long[::1]",
    size="unsigned long long[::1]",
    piece_fde="unsigned int[::1]",
    piece_start="unsigned long long[::1]",
    piece_end="unsigned long long[::1]",
)
def resolve(order: Column, fdes: Fdes, code: Spans, pieces: Pieces, ignored: Column, lost: Column) -> int:
    """Fills `pieces`, the code that each FDE describes, by address, and returns their number.

    `order`: FDE numbers by start, stable; empty if the FDEs are in that order. `code`: the executable ranges. `pieces` and `lost`
    have room for all FDEs; `lost` gets the FDEs that are counted in `ignored`, without the empty ones.
    """
    start = fdes.start
    size = fdes.size
    piece_fde, piece_start, piece_end = pieces
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
        elif count and piece_start[count - 1] == start[fde]:
            what = 3
        elif count and piece_end[count - 1] > start[fde]:
            what = 4
            piece_end[count - 1] = start[fde]
        if what >= 0:
            ignored[what] += 1
        if what > 0:
            lost[losses] = piece_fde[count - 1] if what == 4 else fde
            losses += 1
        if what < 0 or what == 4:
            piece_fde[count] = fde
            piece_start[count] = start[fde]
            piece_end[count] = start[fde] + size[fde]
            count += 1
    return count
