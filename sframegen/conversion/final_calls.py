"""Calls that end a function, and the padding after them: it gets the call's rule.

Such a call never returns. Its return address is the first byte after the function: padding, or the next function. A consumer that
looks up the return address itself, not the byte before it, finds the call's row only if the function covers the padding. Padding
never executes, so no rule for it can be false.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, cast

from sframegen.base.columns import room, zeros
from sframegen.conversion.endings import CallForms, FoundCalls, final_calls
from sframegen.conversion.resolve import pick, sort
from sframegen.elf.code_bytes.machines import MACHINES
from sframegen.elf.function_scan import symbol_values
from sframegen.elf.symbols import SymbolTable, symbol_tables

if TYPE_CHECKING:
    from sframegen.base.columns import Column
    from sframegen.conversion.described_code import Pieces
    from sframegen.elf.columns import Areas
    from sframegen.elf.file import ElfFile
    from sframegen.format.model import FunctionTable


class FinalCalls(NamedTuple):
    """The functions of a table that end with a call."""

    function: Column  # numbers of those that padding follows
    padded_size: array[int]  # of each function of the table, with that padding
    without_padding: int  # number of the others
    places: Column  # addresses that symbols name, ascending: padding holds none of them

    def covering(self, table: FunctionTable) -> FunctionTable:
        """The table; these functions also cover the padding after them."""
        return replace(table, size=self.padded_size)

    def ends(self, table: FunctionTable) -> dict[int, int]:
        """Address where such a function ends -> where its padding ends."""
        start, size = table.start, table.size
        return {start[one] + size[one]: start[one] + self.padded_size[one] for one in self.function}


def find_final_calls(elf: ElfFile, table: FunctionTable, pieces: Pieces, areas: Areas, code: int) -> FinalCalls:
    """The final calls of the functions that lie in `pieces`. Padding lies in areas whose fate is `code`."""
    forms = MACHINES[elf.header.e_machine].calls
    places = symbol_places(elf)
    function, padded_size = cast("list[array[int]]", room("II", len(table)))
    padded_size[:] = table.size
    found, without = final_calls(
        table.columns(),
        bytes(kind.mask for kind in table.kinds),
        pieces.spans(),
        areas,
        code,
        places,
        CallForms(
            array("Q", [form.mask for form in forms]),
            array("Q", [form.value for form in forms]),
            bytes(form.relative for form in forms),
        ),
        FoundCalls(function, padded_size),
    )
    return FinalCalls(function[:found], padded_size, without, places)


def symbol_places(elf: ElfFile) -> Column:
    """Addresses that defined symbols name, ascending."""
    tables = [SymbolTable(elf, section) for section in symbol_tables(elf)]
    values, ordered, order, spare = room("QQII", sum(map(len, tables)))
    count = 0
    for table in tables:
        count += symbol_values(table.raw, elf.byte_order == "big", values[count:])
    sort(values, 0, order[:count], spare, zeros("I", 2048))
    pick(values, order[:count], ordered)
    return ordered[:count]
