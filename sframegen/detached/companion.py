"""Linked ELF files without the code of a program: what another file has beside it. Nothing adds a section to one or removes it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from sframegen.detached.detached_file import ADDRESS
from sframegen.elf.records import SHF, SHT
from sframegen.format.locate import unloaded_of

if TYPE_CHECKING:
    from sframegen.elf.file import ElfFile


class Companion(StrEnum):
    """The value is what users read."""

    DEBUG_FILE = "a separate debug file"
    DETACHED_SECTION = "a detached section"


def companion_of(elf: ElfFile) -> Companion | None:
    """None for a program or library. A debug file has code sections without bytes, a detached section has none at all."""
    code = {section.header.sh_type for section in elf.sections if section.header.sh_flags & SHF.EXECINSTR}
    if code == {SHT.NOBITS}:
        return Companion.DEBUG_FILE
    section = None if code else unloaded_of(elf)
    return None if section is None or section.header.sh_addr != ADDRESS else Companion.DETACHED_SECTION


def is_detached(elf: ElfFile) -> bool:
    """True for the file of a detached section."""
    return companion_of(elf) is Companion.DETACHED_SECTION
