"""Finds calls that end a function. The padding after such a call gets the call's rule.

A call at the end never returns. Its return address is the first byte after the function: padding, or the next function. A consumer
that looks up the return address itself, not the byte before it, finds the call's row only if the function covers the padding.
Padding never executes, so a rule for it cannot be wrong. Compiled.
"""

from __future__ import annotations

from array import array
from dataclasses import replace

from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple, cast

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

from sframegen.base.columns import make_columns, sorted_column
from sframegen.elf.code_bytes.machines import MACHINES
from sframegen.elf.function_scan import symbol_values
from sframegen.elf.symbols import SymbolTable, symbol_tables

if TYPE_CHECKING:
    from sframegen.base.columns import Bytes, Column
    from sframegen.conversion.resolve import Pieces
    from sframegen.elf.columns import Areas
    from sframegen.elf.file import ElfFile
    from sframegen.format.columns import Functions
    from sframegen.format.model import FunctionTable


class FinalCalls(NamedTuple):
    """The functions of a table that end with a call."""

    function: Column  # numbers of the functions that padding follows
    padded_size: array[int]  # size of each function of the table, with that padding
    without_padding: int  # number of functions that end with a call, but have no padding after it
    places: Column  # addresses of defined symbols, ascending: padding holds none of them

    def covering(self, table: FunctionTable) -> FunctionTable:
        """Return the table, in which functions that end with a call also cover the padding after them."""
        return replace(table, size=self.padded_size)

    def ends(self, table: FunctionTable) -> dict[int, int]:
        """Return a mapping for the functions that padding follows: address of their end -> end of the padding."""
        start, size = table.start, table.size
        return {start[one] + size[one]: start[one] + self.padded_size[one] for one in self.function}


def find_final_calls(elf: ElfFile, table: FunctionTable, pieces: Pieces, areas: Areas, code: int) -> FinalCalls:
    """Find the final calls of the functions that lie in `pieces`. Padding lies in areas whose fate is `code`."""
    forms = MACHINES[elf.header.e_machine].calls
    places = symbol_places(elf)
    function, padded_size = cast("list[array[int]]", make_columns("II", len(table)))
    padded_size[:] = table.size
    repeats = bytes(kind.mask for kind in table.kinds)
    columns = (array("Q", [form.mask for form in forms]), array("Q", [form.value for form in forms]))
    call_forms = CallForms(*columns, bytes(form.relative for form in forms))
    found, without = _find(table.columns(), repeats, pieces, areas, code, places, call_forms, (function, padded_size))
    return FinalCalls(function[:found], padded_size, without, places)


def symbol_places(elf: ElfFile) -> Column:
    """Return the addresses of all defined symbols, ascending."""
    tables = [SymbolTable(elf, section) for section in symbol_tables(elf)]
    (values,) = make_columns("Q", sum(map(len, tables)))
    count = 0
    for table in tables:
        count += symbol_values(table.raw, elf.byte_order == "big", values[count:])
    return sorted_column(values[:count])


class CallForms:
    """The instruction forms of a call, in columns: the mask and value to compare with, and whether the target is relative."""

    def __init__(self, mask: Column, value: Column, relative: Bytes) -> None:
        self.mask = mask
        self.value = value
        self.relative = relative


@cython.cfunc
@cython.exceptval(-1)
def _ends_with_call(forms: CallForms, areas: Areas, end: cython.ulonglong, tail: cython.ulonglong) -> cython.bint:
    """True if the bytes before `end` (`tail`) have the form of a call. The target of a relative call must lie in the code."""
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
    piece_start="const unsigned long long[::1]",
    piece_end="const unsigned long long[::1]",
    function="unsigned int[::1]",
    padded_size="unsigned int[::1]",
)
def _find(
    functions: Functions,
    repeats: Bytes,
    pieces: Pieces,
    areas: Areas,
    code: cython.Py_ssize_t,
    places: Column,
    forms: CallForms,
    found: tuple[Column, Column],
) -> tuple[int, int]:
    """Fills `found`: the numbers of the functions that end with a call and padding, and their sizes with that padding.

    Returns the number of these functions, and the number of functions that end with a call without padding.

    Functions and `places` ascend. A function counts if a piece ends where it ends and `repeats` does not mark its kind. Padding
    lies in an area of fate `code` of the function's segment, goes on to the area's end or the next piece, and holds none of the
    `places`; the area's states accept all of it. Its last no-op may go on in the next piece, as before glibc's __restore_rt.
    """
    function, padded_size = found
    piece_start = pieces.start
    piece_end = pieces.end
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
    for i in range(len(functions.start)):
        ahead = i + 16
        if cython.compiled and ahead < len(functions.start):
            areas.fetch(area, functions.start[ahead] + functions.size[ahead])
        low = functions.start[i] + functions.size[i]
        while piece < len(piece_end) and piece_end[piece] <= functions.start[i]:
            piece += 1
        if piece == len(piece_end):
            break
        if piece_end[piece] != low or repeats[functions.kind[i]]:
            continue
        while area < len(areas.end) and areas.end[area] < low:
            area += 1
        if area == len(areas.end) or areas.start[area] >= low:
            continue
        if not _ends_with_call(forms, areas, low, areas.before(area, low, min(functions.size[i], 8))):
            continue
        here = areas.following(area, low)
        high = low
        if areas.fate[here] == code:
            high = areas.end[here]
            if piece + 1 < len(piece_start) and piece_start[piece + 1] < high:
                high = piece_start[piece + 1]
            while place < len(places) and places[place] < low:
                place += 1
            if (place < len(places) and places[place] < high) or (high - functions.start[i]) >> 32:
                high = low
        if high > low and areas.padding_end(here, low, high, False) == high:
            function[with_padding] = i
            with_padding += 1
            padded_size[i] = high - functions.start[i]
        else:
            without += 1
    return with_padding, without
