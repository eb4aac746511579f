"""An ELF file -> its DecodedTable: from its own SFrame section, else from its call frame information."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from cfi.errors import FormatError
from sframegen.checks.finding import Severity
from sframegen.checks.specification.wellformed import examine
from sframegen.conversion.convert import convert_sources
from sframegen.conversion.sources import find_sources
from sframegen.elf.records import ET_DYN, ET_EXEC
from sframegen.format.abi import abi_of
from sframegen.format.decode import open_section
from sframegen.format.locate import sframe_of
from sframegen.profile.tables.table_of import table_of

if TYPE_CHECKING:
    from sframegen.elf.file import ElfFile
    from sframegen.format.abi import Abi
    from sframegen.format.model import FunctionTable
    from sframegen.profile.tables.decoded_table import DecodedTable


class Origin(Enum):
    """What a table was made of, in the words that users see."""

    SECTION = "its own section"
    CONVERTED = "its call frame information"
    NOTHING = "nothing"


class Made(NamedTuple):
    """`table`: None if nothing can be said. `why`: one line, of a section that is damaged or of what cannot be read; else empty."""

    table: DecodedTable | None
    origin: Origin
    why: str = ""


def make_table(elf: ElfFile) -> Made:
    """The table with link-time addresses. A section that is damaged is not used: `why` says so. Raises nothing for any bytes."""
    try:
        abi = abi_of(elf)
        if abi.byte_order != "little" or elf.header.e_type not in (ET_EXEC, ET_DYN):
            return Made(None, Origin.NOTHING, "neither a program nor a library of x86-64 or AArch64")
    except FormatError as error:
        return Made(None, Origin.NOTHING, str(error))
    why = ""
    try:
        functions = _own(elf, abi)
        if functions is not None:
            return Made(table_of(functions), Origin.SECTION)
    except FormatError as error:
        why = f"{error}; not used"
    try:
        sources = find_sources(elf)
        functions = convert_sources(sources, elf.executable_ranges(), abi).table
    except FormatError as error:
        return Made(None, Origin.NOTHING, _joined(why, str(error)))
    why = _joined(why, *sources.warnings)
    return Made(table_of(functions), Origin.CONVERTED, why) if len(functions) else Made(None, Origin.NOTHING, why)


def _own(elf: ElfFile, abi: Abi) -> FunctionTable | None:
    """The functions of the file's own section; None without any. Raises FormatError where `check` finds an error in its bytes."""
    found = sframe_of(elf)
    if found is None or not found[0]:
        return None
    data, address = found
    facts = examine(data, address, executable=elf.executable_ranges(), byte_order=elf.byte_order)
    error = next((finding for finding in facts.findings if finding.severity is Severity.ERROR), None)
    if error is not None:
        raise elf.error(error.message, ".sframe", error.offset)
    section = open_section(data, address)
    if section.abi.sframe_id != abi.sframe_id:
        raise elf.error(f"for {section.abi.name}", ".sframe", 4)
    return section.table if len(section.table) else None


def _joined(*notes: str) -> str:
    return "; ".join(filter(None, notes))
