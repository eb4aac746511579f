"""Along the functions: which of them end with a call, and how much padding follows. Compiled."""

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
    start="const unsigned long long[::1]",
    size="const unsigned int[::1]",
    kind="const unsigned short[::1]",
    repeats="const unsigned char[::1]",
    piece_start="const unsigned long long[::1]",
    piece_end="const unsigned long long[::1]",
    data="const unsigned char[::1]",
    area_start="const unsigned long long[::1]",
    area_end="const unsigned long long[::1]",
    area_offset="const unsigned long long[::1]",
    area_fate="const unsigned char[::1]",
    places="const unsigned long long[::1]",
    states="const unsigned short[::1]",
    masks="const unsigned long long[::1]",
    values="const unsigned long long[::1]",
    relative="const unsigned char[::1]",
    function="unsigned int[::1]",
    padded_size="unsigned int[::1]",
)
def final_calls(
    start: Column,
    size: Column,
    kind: Column,
    repeats: Bytes,
    piece_start: Column,
    piece_end: Column,
    data: Bytes,
    area_start: Column,
    area_end: Column,
    area_offset: Column,
    area_fate: Bytes,
    code: cython.Py_ssize_t,
    places: Column,
    states: Column,
    masks: Column,
    values: Column,
    relative: Bytes,
    function: Column,
    padded_size: Column,
) -> tuple[int, int]:
    """Fills `function`: those whose last instruction is a call that padding follows; their `padded_size` grows by it.

    Returns how many these are, and how many functions end with a call that no padding follows. Functions, pieces, areas and
    `places` ascend. A function counts if a piece ends where it ends and `repeats` does not mark its kind. An area's bytes are at
    data[area_offset]. Padding lies in an area of fate `code`, goes on to the area's end or the next piece, and holds none of the
    `places`; `states` (padding.py) take all of it. Its last no-op may go on in the next piece, as before glibc's __restore_rt.
    `masks`, `values`, `relative`: the forms of a call (final_calls.py).
    """
    with_padding: cython.Py_ssize_t = 0
    without: cython.Py_ssize_t = 0
    piece: cython.Py_ssize_t = 0
    area: cython.Py_ssize_t = 0
    place: cython.Py_ssize_t = 0
    i: cython.Py_ssize_t
    here: cython.Py_ssize_t
    form: cython.Py_ssize_t
    pos: cython.Py_ssize_t
    state: cython.Py_ssize_t
    count: cython.Py_ssize_t
    step: cython.longlong
    is_call: cython.bint
    tail: cython.ulonglong
    low: cython.ulonglong
    high: cython.ulonglong
    for i in range(len(start)):
        low = start[i] + size[i]
        while piece < len(piece_end) and piece_end[piece] <= start[i]:
            piece += 1
        if piece == len(piece_end):
            break
        if piece_end[piece] != low or repeats[kind[i]]:
            continue
        while area < len(area_end) and area_end[area] < low:
            area += 1
        if area == len(area_end) or area_start[area] >= low:
            continue
        pos = area_offset[area] + (low - area_start[area])
        count = min(size[i], 8)
        tail = 0
        for here in range(pos - count, pos):
            tail = (tail << 8) | data[here]
        is_call = False
        for form in range(len(masks)):
            if tail & masks[form] == values[form]:
                is_call = True
                if relative[form]:
                    step = data[pos - 1]
                    step = (step - 256 if step >= 128 else step) * 0x1000000
                    step += data[pos - 4] | (data[pos - 3] << 8) | (data[pos - 2] << 16)
                    if step > 0:
                        is_call = low + step < area_end[len(area_end) - 1]
                    elif step < 0:
                        is_call = low - area_start[0] >= -step
                if is_call:
                    break
        if not is_call:
            continue
        here = area
        if area_end[area] == low:
            here += 1
        high = low
        if here < len(area_end) and area_start[here] <= low and area_fate[here] == code:
            high = area_end[here]
            if piece + 1 < len(piece_start) and piece_start[piece + 1] < high:
                high = piece_start[piece + 1]
            while place < len(places) and places[place] < low:
                place += 1
            if (place < len(places) and places[place] < high) or (high - start[i]) >> 32:
                high = low
        state = 0
        while low < high and state != 0xFFFF:  # FAIL
            state = states[(state << 8) | data[pos]]
            pos += 1
            low += 1
        if state != 0xFFFF and high - start[i] > size[i]:
            function[with_padding] = i
            with_padding += 1
            padded_size[i] = high - start[i]
        else:
            without += 1
    return with_padding, without
