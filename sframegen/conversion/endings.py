"""Along the functions: which of them end with a call, and how much padding follows. Compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from cfi import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from cfi.columns import Bytes, Column
    from sframegen.elf.columns import Areas, Spans
    from sframegen.format.columns import Functions

COMPILED: bool = cython.compiled


class Forms:
    """The forms of a call, as in final_calls.py."""

    def __init__(self, mask: Column, value: Column, relative: Bytes) -> None:
        self.mask = mask
        self.value = value
        self.relative = relative


class FoundCalls:
    """The functions that end with a call that padding follows; the size of each function, in theirs the padding too.

    `tails` is room: the last eight bytes of each of the functions that are looked at next.
    """

    def __init__(self, function: Column, padded_size: Column, tails: Column) -> None:
        self.function = function
        self.padded_size = padded_size
        self.tails = tails


@cython.cfunc
@cython.exceptval(-1)
def read_tails(functions: Functions, areas: Areas, first: cython.Py_ssize_t, tails: FoundCalls) -> cython.Py_ssize_t:
    """Fills the tails from function `first` on. Each is a wait for memory, and here they are waited for together."""
    area: cython.Py_ssize_t = 0
    i: cython.Py_ssize_t
    here: cython.Py_ssize_t
    pos: cython.Py_ssize_t
    count: cython.Py_ssize_t = min(len(functions.start) - first, len(tails.tails))
    tail: cython.ulonglong
    low: cython.ulonglong
    for i in range(first, first + count):
        low = functions.start[i] + functions.size[i]
        while area < len(areas.end) and areas.end[area] < low:
            area += 1
        tail = 0
        if area < len(areas.end) and areas.start[area] < low:
            pos = areas.offset[area] + (low - areas.start[area])
            for here in range(pos - min(functions.size[i], 8), pos):
                tail = (tail << 8) | areas.data[here]
        tails.tails[i - first] = tail
    return count


@cython.locals(repeats="const unsigned char[::1]", places="const unsigned long long[::1]")
def final_calls(
    functions: Functions,
    repeats: Bytes,
    pieces: Spans,
    areas: Areas,
    code: cython.Py_ssize_t,
    places: Column,
    forms: Forms,
    found: FoundCalls,
) -> tuple[int, int]:
    """Fills `found`, and returns (number of these, number of functions that end with a call that no padding follows).

    Functions and `places` ascend. A function counts if a piece ends where it ends and `repeats` does not mark its kind. Padding
    lies in an area of fate `code`, goes on to the area's end or the next piece, and holds none of the `places`; the area's states
    accept all of it. Its last no-op may go on in the next piece, as before glibc's __restore_rt.
    """
    with_padding: cython.Py_ssize_t = 0
    without: cython.Py_ssize_t = 0
    piece: cython.Py_ssize_t = 0
    area: cython.Py_ssize_t = 0
    place: cython.Py_ssize_t = 0
    i: cython.Py_ssize_t
    first: cython.Py_ssize_t = 0  # of the functions whose tails are read
    read: cython.Py_ssize_t = 0  # number of functions whose tails are read or were
    here: cython.Py_ssize_t
    form: cython.Py_ssize_t
    pos: cython.Py_ssize_t
    state: cython.Py_ssize_t
    step: cython.longlong
    is_call: cython.bint
    tail: cython.ulonglong
    low: cython.ulonglong
    high: cython.ulonglong
    for i in range(len(functions.start)):
        if i == read:
            first = i
            read += read_tails(functions, areas, i, found)
        low = functions.start[i] + functions.size[i]
        while piece < len(pieces.end) and pieces.end[piece] <= functions.start[i]:
            piece += 1
        if piece == len(pieces.end):
            break
        if pieces.end[piece] != low or repeats[functions.kind[i]]:
            continue
        while area < len(areas.end) and areas.end[area] < low:
            area += 1
        if area == len(areas.end) or areas.start[area] >= low:
            continue
        pos = areas.offset[area] + (low - areas.start[area])
        tail = found.tails[i - first]
        is_call = False
        for form in range(len(forms.mask)):
            if tail & forms.mask[form] == forms.value[form]:
                is_call = True
                if forms.relative[form]:
                    step = areas.data[pos - 1]
                    step = (step - 256 if step >= 128 else step) * 0x1000000
                    step += areas.data[pos - 4] | (areas.data[pos - 3] << 8) | (areas.data[pos - 2] << 16)
                    if step > 0:
                        is_call = low + step < areas.end[len(areas.end) - 1]
                    elif step < 0:
                        is_call = low - areas.start[0] >= -step
                if is_call:
                    break
        if not is_call:
            continue
        here = area
        if areas.end[area] == low:
            here += 1
        high = low
        if here < len(areas.end) and areas.start[here] <= low and areas.fate[here] == code:
            high = areas.end[here]
            if piece + 1 < len(pieces.start) and pieces.start[piece + 1] < high:
                high = pieces.start[piece + 1]
            while place < len(places) and places[place] < low:
                place += 1
            if (place < len(places) and places[place] < high) or (high - functions.start[i]) >> 32:
                high = low
        state = 0
        while low < high and state != 0xFFFF:  # FAIL
            state = areas.padding[(state << 8) | areas.data[pos]]
            pos += 1
            low += 1
        if state != 0xFFFF and high - functions.start[i] > functions.size[i]:
            found.function[with_padding] = i
            with_padding += 1
            found.padded_size[i] = high - functions.start[i]
        else:
            without += 1
    return with_padding, without
