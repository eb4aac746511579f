"""Along the functions: which of them end with a call, and how much padding follows. Compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from sframegen.base.columns import Bytes, Column
    from sframegen.elf.columns import Areas, Spans
    from sframegen.format.columns import Functions

COMPILED: bool = cython.compiled


class CallForms:
    """The forms of a call, as in final_calls.py."""

    def __init__(self, mask: Column, value: Column, relative: Bytes) -> None:
        self.mask = mask
        self.value = value
        self.relative = relative


class FoundCalls:
    """The functions that end with a call that padding follows; the size of each function, in theirs the padding too."""

    def __init__(self, function: Column, padded_size: Column) -> None:
        self.function = function
        self.padded_size = padded_size


@cython.cfunc
@cython.exceptval(-1)
def ends_with_call(forms: CallForms, areas: Areas, end: cython.ulonglong, tail: cython.ulonglong) -> cython.bint:
    """True if the last bytes before `end` have a call's form. A relative call leads into the code."""
    form: cython.Py_ssize_t
    step: cython.longlong
    for form in range(len(forms.mask)):
        if tail & forms.mask[form] != forms.value[form]:
            continue
        step = 0
        if forms.relative[form]:
            step = tail & 0xFF
            step = (step - 256 if step >= 128 else step) * 0x1000000
            step += ((tail >> 24) & 0xFF) | ((tail >> 8) & 0xFF00) | ((tail << 8) & 0xFF0000)
        if step == 0 or (step > 0 and end + step < areas.end[len(areas.end) - 1]) or (step < 0 and end - areas.start[0] >= -step):
            return True
    return False


@cython.locals(
    repeats="const unsigned char[::1]",
    places="const unsigned long long[::1]",
    start="const unsigned long long[::1]",
    size="const unsigned int[::1]",
    kind="const unsigned short[::1]",
    piece_end="const unsigned long long[::1]",
    area_end="const unsigned long long[::1]",
)
def final_calls(
    functions: Functions,
    repeats: Bytes,
    pieces: Spans,
    areas: Areas,
    code: cython.Py_ssize_t,
    places: Column,
    forms: CallForms,
    found: FoundCalls,
) -> tuple[int, int]:
    """Fills `found`, and returns (number of these, number of functions that end with a call that no padding follows).

    Functions and `places` ascend. A function counts if a piece ends where it ends and `repeats` does not mark its kind. Padding
    lies in an area of fate `code` of the function's segment, goes on to the area's end or the next piece, and holds none of the
    `places`; the area's states accept all of it. Its last no-op may go on in the next piece, as before glibc's __restore_rt.
    """
    start = functions.start
    size = functions.size
    kind = functions.kind
    piece_end = pieces.end
    area_end = areas.end
    with_padding: cython.Py_ssize_t = 0
    without: cython.Py_ssize_t = 0
    piece: cython.Py_ssize_t = 0
    area: cython.Py_ssize_t = 0
    place: cython.Py_ssize_t = 0
    i: cython.Py_ssize_t
    ahead: cython.Py_ssize_t
    here: cython.Py_ssize_t
    low: cython.ulonglong
    high: cython.ulonglong
    for i in range(len(start)):
        ahead = i + 16
        if cython.compiled and ahead < len(start):
            areas.fetch(area, start[ahead] + size[ahead])
        low = start[i] + size[i]
        while piece < len(piece_end) and piece_end[piece] <= start[i]:
            piece += 1
        if piece == len(piece_end):
            break
        if piece_end[piece] != low or repeats[kind[i]]:
            continue
        while area < len(area_end) and area_end[area] < low:
            area += 1
        if area == len(area_end) or areas.start[area] >= low:
            continue
        if not ends_with_call(forms, areas, low, areas.before(area, low, min(size[i], 8))):
            continue
        here = areas.following(area, low)
        high = low
        if areas.fate[here] == code:
            high = area_end[here]
            if piece + 1 < len(pieces.start) and pieces.start[piece + 1] < high:
                high = pieces.start[piece + 1]
            while place < len(places) and places[place] < low:
                place += 1
            if (place < len(places) and places[place] < high) or (high - start[i]) >> 32:
                high = low
        if high > low and areas.padding_end(here, low, high, False) == high:
            found.function[with_padding] = i
            with_padding += 1
            found.padded_size[i] = high - start[i]
        else:
            without += 1
    return with_padding, without
