"""A linked file and the functions of its section -> what is not between functions that share an FDE."""

from __future__ import annotations

from array import array
from operator import add
from typing import TYPE_CHECKING

from cfi import reader
from sframegen.conversion.final_calls import symbol_places
from sframegen.conversion.sources import find_sources
from sframegen.elf.ranges import disjoint, without
from sframegen.tables.optimize import Borders

if TYPE_CHECKING:
    from sframegen.elf.file import ElfFile
    from sframegen.elf.ranges import Range
    from sframegen.format.abi import Abi
    from sframegen.format.model import FunctionTable


def borders_of(elf: ElfFile, table: FunctionTable, abi: Abi) -> Borders:
    """Whoever made the section may have left out code: no-ops between functions are padding only if the CFI does not describe them.

    Raises FormatError if the CFI cannot be read.
    """
    said = disjoint(zip(table.start, map(add, table.start, table.size), strict=True))
    unsaid = array("Q", (start for start, _ in without(_described(elf, abi), said)))
    return Borders(symbol_places(elf), unsaid)


def _described(elf: ElfFile, abi: Abi) -> list[Range]:
    """The code of all FDEs; all code, where the file does not say which code they are for."""
    fdes = reader.read(find_sources(elf).sections, abi.followed)
    if not len(fdes) or fdes.faulty:
        return elf.executable_ranges()
    return disjoint(zip(fdes.start, map(add, fdes.start, fdes.size), strict=True))
