"""Makes sections in memory for objects that have none, from call frame information and, if asked, from instructions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.base.errors import FormatError
from sframegen.code.whole_file.proven_code import proven
from sframegen.conversion.convert import convert_sources
from sframegen.conversion.sources import find_sources
from sframegen.format.abi import abi_of
from sframegen.format.decode import open_section
from sframegen.format.encode import Encoder
from sframegen.stack.objects.loaded_image import identity

if TYPE_CHECKING:
    from collections.abc import Hashable

    from sframegen.elf.file import ElfFile
    from sframegen.format.decode import SframeSection


class Converter:
    """Converts each file once, and once more with rules that its instructions prove."""

    def __init__(self) -> None:
        self._made: dict[tuple[Hashable, bool], memoryview | None] = {}

    def section_of(self, file: ElfFile, bias: int, *, proves: bool) -> SframeSection | None:
        """Return the section as if it were loaded; None if nothing can be expressed. `proves`: also rules of code without CFI."""
        key = identity(file), proves
        if key not in self._made:
            self._made[key] = _section(file, proves=proves)
        data = self._made[key]
        return None if data is None else open_section(data, bias)


def _section(file: ElfFile, *, proves: bool) -> memoryview | None:
    """Return the bytes of the section, made for link-time address 0; None if nothing can be expressed."""
    try:
        abi = abi_of(file)
        converted = proven(file, abi)[0] if proves else convert_sources(find_sources(file), file.executable_ranges(), abi)
        return Encoder(converted.table, abi, encoded=converted.encoded).encode(0) if len(converted.table) else None
    except FormatError:
        return None
