"""Bytes of code by fate: what functions say, what they leave out, and what lies between them. Compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from cfi import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from cfi.columns import Bytes, Column

COMPILED: bool = cython.compiled


@cython.locals(
    piece_start="const unsigned long long[::1]",
    piece_end="const unsigned long long[::1]",
    start="const unsigned long long[::1]",
    size="const unsigned int[::1]",
    kind="const unsigned short[::1]",
    first_row="const unsigned int[::1]",
    row_start="const unsigned int[::1]",
    row_rule="const unsigned int[::1]",
    kind_fate="const unsigned char[::1]",
    outermost="const unsigned char[::1]",
    unsaid_start="const unsigned long long[::1]",
    unsaid_size="const unsigned int[::1]",
    unsaid_reason="const unsigned char[::1]",
    fates="unsigned long long[::1]",
)
def tally(
    piece_start: Column,
    piece_end: Column,
    start: Column,
    size: Column,
    kind: Column,
    first_row: Column,
    row_start: Column,
    row_rule: Column,
    kind_fate: Bytes,
    outermost: Bytes,
    outermost_fate: cython.Py_ssize_t,
    unsaid_start: Column,
    unsaid_size: Column,
    unsaid_reason: Bytes,
    first_reason: cython.Py_ssize_t,
    stride: cython.Py_ssize_t,
    fates: Column,
) -> None:
    """Adds to fates[p * stride + fate] the bytes of piece p; stride 0 adds up all pieces.

    Every unsaid range lies within one piece, and so does every function (its rows by `first_row`), or outside of all: then it
    is not counted. All ascend. `kind_fate`: of a row of each kind; below `outermost_fate`, rows whose rule is `outermost` get that
    one instead. The fate of reason 0 is `first_reason`.
    """
    piece: cython.Py_ssize_t = 0
    i: cython.Py_ssize_t
    row: cython.Py_ssize_t
    fate: cython.Py_ssize_t
    high: cython.ulonglong
    for i in range(len(start)):
        while piece < len(piece_end) and piece_end[piece] <= start[i]:
            piece += 1
        if piece == len(piece_end) or start[i] < piece_start[piece]:
            continue
        for row in range(first_row[i], first_row[i + 1]):
            high = size[i]
            if row + 1 < first_row[i + 1]:
                high = row_start[row + 1]
            fate = kind_fate[kind[i]]
            if fate < outermost_fate and outermost[row_rule[row]]:
                fate = outermost_fate
            fates[piece * stride + fate] += high - row_start[row]
    piece = 0
    for i in range(len(unsaid_start)):
        while piece_end[piece] <= unsaid_start[i]:
            piece += 1
        fates[piece * stride + first_reason + unsaid_reason[i]] += unsaid_size[i]


@cython.locals(
    data="const unsigned char[::1]",
    area_start="const unsigned long long[::1]",
    area_end="const unsigned long long[::1]",
    area_offset="const unsigned long long[::1]",
    area_fate="const unsigned char[::1]",
    piece_start="const unsigned long long[::1]",
    piece_end="const unsigned long long[::1]",
    states="const unsigned short[::1]",
    fates="unsigned long long[::1]",
    gap_start="unsigned long long[::1]",
    gap_end="unsigned long long[::1]",
)
def tally_gaps(
    data: Bytes,
    area_start: Column,
    area_end: Column,
    area_offset: Column,
    area_fate: Bytes,
    piece_start: Column,
    piece_end: Column,
    states: Column,
    code: cython.Py_ssize_t,
    padding: cython.Py_ssize_t,
    fates: Column,
    gap_start: Column,
    gap_end: Column,
) -> int:
    """Adds to `fates` the bytes of the areas that no piece holds: by the area's fate, but for `code`, where they are looked at.

    Areas and pieces ascend without overlaps; an area's bytes are at data[area_offset]. `padding` is what a gap begins with, as far
    as `states` (see padding.py) takes it; the gap's last no-op may go on in the next piece, as before glibc's __restore_rt.

    What is `code` in the gaps is recorded, as far as there is room; returns how many ranges are.
    """
    gaps: cython.Py_ssize_t = 0
    piece: cython.Py_ssize_t = 0
    area: cython.Py_ssize_t
    pos: cython.Py_ssize_t
    begin: cython.Py_ssize_t
    end: cython.Py_ssize_t
    state: cython.Py_ssize_t
    padded: cython.ulonglong
    low: cython.ulonglong
    high: cython.ulonglong
    for area in range(len(area_start)):
        low = area_start[area]
        while low < area_end[area]:
            while piece < len(piece_end) and piece_end[piece] <= low:
                piece += 1
            high = area_end[area]
            if piece < len(piece_end) and piece_start[piece] < high:
                high = piece_start[piece]
            if high <= low:
                low = piece_end[piece]
                continue
            padded = 0
            if area_fate[area] == code:
                begin = area_offset[area] + (low - area_start[area])
                end = begin + (high - low)
                state = 0
                for pos in range(begin, end):
                    state = states[(state << 8) | data[pos]]
                    if state == 0xFFFF:  # FAIL
                        break
                    if state == 0 or pos + 1 == end:
                        padded = pos + 1 - begin
            fates[padding] += padded
            fates[area_fate[area]] += high - low - padded
            if area_fate[area] == code and padded < high - low and gaps < len(gap_start):
                gap_start[gaps] = low + padded
                gap_end[gaps] = high
                gaps += 1
            low = high
    return gaps
