"""Finds final calls, which are the last instruction of a function. The padding after such a call gets the call's rule. Compiled.

A final call never returns. Its return address is the first byte after the function: padding, or the next function. A consumer
that looks up the return address itself, not the byte before it, finds the call's row only if the function covers the padding.
Padding never executes, so a rule for it cannot be wrong.
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
from sframegen.elf.function_scan import fill_symbol_values
from sframegen.elf.symbols import SymbolTable, symbol_tables

if TYPE_CHECKING:
    from sframegen.base.columns import Bytes, Column
    from sframegen.conversion.resolve import FdeRanges
    from sframegen.elf.columns import Areas
    from sframegen.elf.file import ElfFile
    from sframegen.format.columns import Functions
    from sframegen.format.model import FunctionTable


class FinalCalls(NamedTuple):
    """The functions of a table that end with a call."""

    function: Column  # numbers of the functions that padding follows
    padded_size: array[int]  # size of each function of the table, with that padding
    without_padding: int  # number of functions that end with a call, but have no padding after it
    symbols: Column  # addresses of defined symbols, ascending: no symbol lies in padding

    def cover_padding(self, table: FunctionTable) -> FunctionTable:
        """Return a copy of the table in which functions that end with a call also cover the padding after them."""
        return replace(table, size=self.padded_size)

    def padding_ends(self, table: FunctionTable) -> dict[int, int]:
        """Map the end address of each function that padding follows to the end of that padding."""
        start, size = table.start, table.size
        return {start[f] + size[f]: start[f] + self.padded_size[f] for f in self.function}


def find_final_calls(elf: ElfFile, table: FunctionTable, fde_ranges: FdeRanges, areas: Areas, code_category: int) -> FinalCalls:
    """Find the final calls of the functions that lie in `fde_ranges`. Padding lies in areas of category `code_category`."""
    forms = MACHINES[elf.header.e_machine].calls
    symbols = read_symbol_addresses(elf)
    function, padded_size = cast("list[array[int]]", make_columns("II", len(table)))
    padded_size[:] = table.size
    repeats = bytes(kind.mask for kind in table.kinds)
    masks, values = array("Q", [form.mask for form in forms]), array("Q", [form.value for form in forms])
    call_forms = CallForms(masks, values, bytes(form.relative for form in forms))
    with_padding, without_padding = _fill_final_calls(
        table.columns(), repeats, fde_ranges, areas, code_category, symbols, call_forms, (function, padded_size)
    )
    return FinalCalls(function[:with_padding], padded_size, without_padding, symbols)


def read_symbol_addresses(elf: ElfFile) -> Column:
    """Return the addresses of all defined symbols, ascending."""
    tables = [SymbolTable(elf, section) for section in symbol_tables(elf)]
    (values,) = make_columns("Q", sum(map(len, tables)))
    count = 0
    for table in tables:
        count += fill_symbol_values(table.raw, elf.byte_order == "big", values[count:])
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
    """True if `tail`, the bytes before `end` as a number, has the form of a call. A relative call must lead into the code."""
    form: cython.Py_ssize_t
    displacement: cython.longlong
    for form in range(len(forms.mask)):
        if tail & forms.mask[form] != forms.value[form]:
            continue
        displacement = 0
        if forms.relative[form]:  # x86's displacement: the last 4 bytes, little-endian in memory, big-endian in `tail`
            displacement = tail & 0xFF
            displacement = (displacement - 256 if displacement >= 128 else displacement) * 0x1000000
            displacement += ((tail >> 24) & 0xFF) | ((tail >> 8) & 0xFF00) | ((tail << 8) & 0xFF0000)
        if (
            displacement == 0
            or (displacement > 0 and end + displacement < areas.end[len(areas.end) - 1])
            or (displacement < 0 and end - areas.start[0] >= -displacement)
        ):
            return True
    return False


@cython.locals(
    repeats="const unsigned char[::1]", symbols="const unsigned long long[::1]", range_start="const unsigned long long[::1]",
    range_end="const unsigned long long[::1]", function="unsigned int[::1]", padded_size="unsigned int[::1]",
)  # fmt: skip
def _fill_final_calls(
    functions: Functions, repeats: Bytes, fde_ranges: FdeRanges, areas: Areas, code_category: cython.Py_ssize_t,
    symbols: Column, forms: CallForms, columns: tuple[Column, Column],
) -> tuple[int, int]:  # fmt: skip
    """Fills `columns`: the numbers of the functions that end with a call and padding, and the sizes of all with that padding.

    Returns how many functions end with a call and padding, and how many end with a call without padding.

    Functions and `symbols` ascend. A function counts if an FDE range ends where it ends and `repeats` does not mark its kind.
    Padding lies in an area of `code_category` of the function's segment, extends to the area's end or the next FDE range, and has
    no symbol; the area's states accept all of it. Its last no-op may end in the next FDE range, as before glibc's __restore_rt.
    """
    function, padded_size = columns
    range_start = fde_ranges.start
    range_end = fde_ranges.end
    with_padding: cython.Py_ssize_t = 0
    without_padding: cython.Py_ssize_t = 0
    fde_range: cython.Py_ssize_t = 0
    area: cython.Py_ssize_t = 0
    symbol: cython.Py_ssize_t = 0
    i: cython.Py_ssize_t
    prefetched: cython.Py_ssize_t
    padding_area: cython.Py_ssize_t
    low: cython.ulonglong
    high: cython.ulonglong
    for i in range(len(functions.start)):
        prefetched = i + 16  # so far ahead, the bytes are in the CPU's cache in time
        if cython.compiled and prefetched < len(functions.start):
            areas.prefetch_byte(area, functions.start[prefetched] + functions.size[prefetched])
        low = functions.start[i] + functions.size[i]
        while fde_range < len(range_end) and range_end[fde_range] <= functions.start[i]:
            fde_range += 1
        if fde_range == len(range_end):
            break
        if range_end[fde_range] != low or repeats[functions.kind[i]]:
            continue
        while area < len(areas.end) and areas.end[area] < low:
            area += 1
        if area == len(areas.end) or areas.start[area] >= low:
            continue
        if not _ends_with_call(forms, areas, low, areas.bytes_before(area, low, min(functions.size[i], 8))):
            continue
        padding_area = areas.next_area(area, low)
        high = low
        if areas.category[padding_area] == code_category:
            high = areas.end[padding_area]
            if fde_range + 1 < len(range_start) and range_start[fde_range + 1] < high:
                high = range_start[fde_range + 1]
            while symbol < len(symbols) and symbols[symbol] < low:
                symbol += 1
            if (symbol < len(symbols) and symbols[symbol] < high) or (high - functions.start[i]) >> 32:
                high = low
        if high > low and areas.padding_end(padding_area, low, high, False) == high:
            function[with_padding] = i
            with_padding += 1
            padded_size[i] = high - functions.start[i]
        else:
            without_padding += 1
    return with_padding, without_padding
