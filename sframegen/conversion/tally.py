"""Counts bytes of code by fate: in functions, in code that is left out, and in the gaps between FDEs. Compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from sframegen.base.columns import Bytes, Column
    from sframegen.conversion.resolve import Pieces
    from sframegen.conversion.split import Unsaid
    from sframegen.elf.columns import Areas, Spans
    from sframegen.format.columns import Functions


@cython.locals(
    kind_fate="const unsigned char[::1]",
    rule_fate="const unsigned char[::1]",
    fates="unsigned long long[::1]",
    piece_start="const unsigned long long[::1]",
    piece_end="const unsigned long long[::1]",
    unsaid_start="const unsigned long long[::1]",
    unsaid_size="const unsigned int[::1]",
    unsaid_reason="const unsigned char[::1]",
)
def tally(
    pieces: Pieces,
    functions: Functions,
    kind_fate: Bytes,
    rule_fate: Bytes,
    unsaid: Unsaid,
    first_reason: cython.Py_ssize_t,
    fates: Column,
) -> None:
    """Adds to `fates` the bytes of each fate in the pieces.

    Every unsaid range lies within one piece. Functions outside of all pieces are not counted. Pieces, functions and unsaid ranges
    ascend. A row's fate is the greater one of its kind's and its rule's fates. `first_reason`: the fate of reason 0.
    """
    _, piece_start, piece_end = pieces
    unsaid_start, unsaid_size, unsaid_reason = unsaid
    piece: cython.Py_ssize_t = 0
    i: cython.Py_ssize_t
    row: cython.Py_ssize_t
    fate: cython.Py_ssize_t
    high: cython.ulonglong
    for i in range(len(functions.start)):
        while piece < len(piece_end) and piece_end[piece] <= functions.start[i]:
            piece += 1
        if piece == len(piece_end) or functions.start[i] < piece_start[piece]:
            continue
        for row in range(functions.first_row[i], functions.first_row[i + 1]):
            high = functions.size[i]
            if row + 1 < functions.first_row[i + 1]:
                high = functions.row_start[row + 1]
            fate = max(kind_fate[functions.kind[i]], rule_fate[functions.row_rule[row]])
            fates[fate] += high - functions.row_start[row]
    for i in range(len(unsaid_start)):
        fates[first_reason + unsaid_reason[i]] += unsaid_size[i]


@cython.locals(
    piece_start="const unsigned long long[::1]", piece_end="const unsigned long long[::1]", fates="unsigned long long[::1]"
)
def tally_gaps(
    areas: Areas, pieces: Pieces, code: cython.Py_ssize_t, padding: cython.Py_ssize_t, fates: Column, gaps: Spans
) -> int:
    """Adds to `fates` the bytes of the areas outside of all pieces, and returns the number of ranges recorded in `gaps`.

    They count for the area's fate. In an area of fate `code`, a gap begins with `padding`, as far as the area's states accept it;
    the last no-op may go on in the next piece, as before glibc's __restore_rt. The rest of a gap is recorded while there is room.
    """
    found: cython.Py_ssize_t = 0
    piece: cython.Py_ssize_t = 0
    area: cython.Py_ssize_t
    padded: cython.ulonglong
    low: cython.ulonglong
    high: cython.ulonglong
    _, piece_start, piece_end = pieces
    for area in range(len(areas.start)):
        low = areas.start[area]
        while low < areas.end[area]:
            while piece < len(piece_end) and piece_end[piece] <= low:
                piece += 1
            high = areas.end[area]
            if piece < len(piece_end) and piece_start[piece] < high:
                high = piece_start[piece]
            if high <= low:
                low = piece_end[piece]
                continue
            padded = 0
            if areas.fate[area] == code:
                padded = areas.padding_end(area, low, high, False) - low
            fates[padding] += padded
            fates[areas.fate[area]] += high - low - padded
            if areas.fate[area] == code and padded < high - low and found < len(gaps.start):
                gaps.start[found] = low + padded
                gaps.end[found] = high
                found += 1
            low = high
    return found
