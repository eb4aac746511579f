"""Makes sections in memory for objects that have none, from call frame information and, if asked, from instructions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.base.errors import FormatError
from sframegen.code.whole_file.proven_code import proven
from sframegen.conversion.convert import convert_sources
from sframegen.conversion.sources import find_sources
from sframegen.format.abi import abi_of
from sframegen.format.encode import Encoder

if TYPE_CHECKING:
    from sframegen.elf.file import ElfFile


def section_from_cfi(file: ElfFile, *, proves: bool) -> memoryview | None:
    """Return the bytes of the section, made for link-time address 0; None if nothing can be expressed.

    `proves`: also rules of code without CFI, which its instructions prove.
    """
    try:
        abi = abi_of(file)
        converted = proven(file, abi)[0] if proves else convert_sources(find_sources(file), file.executable_ranges(), abi)
        return Encoder(converted.table, abi, encoded=converted.encoded).encode(0) if len(converted.table) else None
    except FormatError:
        return None
