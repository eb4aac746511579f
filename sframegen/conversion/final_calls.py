"""Calls that end a function, and the padding after them: it gets the call's rule.

Such a call never returns. Its return address is the first byte after the function: padding, or the next function. A consumer that
looks up the return address itself, not the byte before it, finds the call's row only if the function covers the padding. Padding
never executes, so no rule for it can be false.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from cfi.columns import zeros
from sframegen.conversion.endings import Forms, FoundCalls, final_calls
from sframegen.conversion.resolve import sort
from sframegen.elf.records import EM_AARCH64, EM_S390, EM_X86_64
from sframegen.elf.symbols import SymbolTable, symbol_tables
from sframegen.tables.join import symbol_values

if TYPE_CHECKING:
    from sframegen.conversion.coverage import Pieces
    from sframegen.elf.columns import Areas
    from sframegen.elf.file import ElfFile
    from sframegen.format.model import FunctionTable


class Form(NamedTuple):
    """A call at a function's end: the last eight bytes, as a big-endian number, are `value` under `mask`.

    `relative`: the last four are the distance to the callee, which lies in the file's code; 0 if a relocation fills it in.
    """

    mask: int
    value: int
    relative: bool = False


def _little(mask: int, value: int) -> Form:
    """Of an instruction of four bytes, the lowest first."""
    return Form(int.from_bytes(mask.to_bytes(4, "little"), "big"), int.from_bytes(value.to_bytes(4, "little"), "big"))


# Only the last bytes are looked at, and an instruction that is no call can end with the same ones. That is rare and does no harm:
# what follows is padding in any case, and never executes.
FORMS = {
    EM_X86_64: (
        Form(0xFF_00000000, 0xE8_00000000, relative=True),
        Form(0xFFF8, 0xFFD0),  # call *%r
        Form(0xFFF8, 0xFF10),  # call *(%r)
        Form(0xFFFF00, 0xFF1400),  # call *(%r,%r)
        Form(0xFFFF07_00000000, 0xFF1405_00000000),  # call *n(,%r)
        Form(0xFFFF_00000000, 0xFF15_00000000),  # call *n(%rip)
        Form(0xFFF800, 0xFF5000),  # call *n(%r)
        Form(0xFFFF0000, 0xFF540000),  # call *n(%r,%r)
        Form(0xFFF8_00000000, 0xFF90_00000000),  # the same, n of four bytes
        Form(0xFFFF00_00000000, 0xFF9400_00000000),
    ),
    EM_AARCH64: (_little(0xFC000000, 0x94000000), _little(0xFEFFF000, 0xD63F0000)),  # bl; blr, also with authentication
    EM_S390: (Form(0xFFFF_00000000, 0xC0E5_00000000), Form(0xFFFF0000, 0xA7E50000), Form(0xFFF0, 0x0DE0)),  # brasl, bras, basr
}


class FinalCalls(NamedTuple):
    """The functions of a table that end with a call."""

    function: array[int]  # numbers of those that padding follows
    padded_size: array[int]  # of each function of the table, with that padding
    without_padding: int  # number of the others
    places: array[int]  # addresses that symbols name, ascending: padding holds none of them

    def covering(self, table: FunctionTable) -> FunctionTable:
        """The table; these functions also cover the padding after them."""
        return replace(table, size=self.padded_size)

    def ends(self, table: FunctionTable) -> dict[int, int]:
        """Address where such a function ends -> where its padding ends."""
        start, size = table.start, table.size
        return {start[one] + size[one]: start[one] + self.padded_size[one] for one in self.function}


def find_final_calls(elf: ElfFile, table: FunctionTable, pieces: Pieces, areas: Areas, code: int) -> FinalCalls:
    """Of the functions that lie in `pieces`. Padding lies in areas whose fate is `code`."""
    forms = FORMS[elf.header.e_machine]
    places = symbol_places(elf)
    function, padded_size = zeros("I", len(table)), table.size[:]
    found, without = final_calls(
        table.columns(),
        bytes(kind.mask for kind in table.kinds),
        pieces.spans(),
        areas,
        code,
        places,
        Forms(
            array("Q", [form.mask for form in forms]),
            array("Q", [form.value for form in forms]),
            bytes(form.relative for form in forms),
        ),
        FoundCalls(function, padded_size),
    )
    return FinalCalls(function[:found], padded_size, without, places)


def symbol_places(elf: ElfFile) -> array[int]:
    """Addresses that defined symbols name, ascending."""
    values = array("Q")
    for section in symbol_tables(elf):
        table = SymbolTable(elf, section)
        found = zeros("Q", len(table))
        values += found[: symbol_values(table.raw, elf.byte_order == "big", found)]
    order = array("I", range(len(values)))
    sort(values, order, zeros("I", len(values)), zeros("I", 2048))
    return array("Q", map(values.__getitem__, order))
