"""The conversion as the benchmarks call it: from a file's CFI sections to the bytes of an SFrame section, in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sframegen.conversion import convert
from sframegen.conversion.cfi_sections import find_sources
from sframegen.elf.file import open_elf
from sframegen.format.abi import abi_of
from sframegen.format.layouts import V3
from sframegen.tables.levels import LEVELS

if TYPE_CHECKING:
    from pathlib import Path

    from sframegen.conversion.cfi_sections import Sources
    from sframegen.elf.file import ElfFile
    from sframegen.format.abi import Abi
    from sframegen.tables.levels import LevelName

ADDRESS = 0x7000_0000  # where sections are encoded for: an address out of the way of all code


class Input(NamedTuple):
    """What is read before any clock runs."""

    elf: ElfFile
    abi: Abi
    sources: Sources
    code: list[tuple[int, int]]

    @property
    def eh_frame_bytes(self) -> int:
        return sum(len(section.data) for section in self.sources.sections)


def open_input(file: Path) -> Input:
    elf = open_elf(file)
    return Input(elf, abi_of(elf), find_sources(elf), elf.executable_ranges())


def section_of(source: Input, level: LevelName, address: int = ADDRESS) -> memoryview:
    """The section at a level of optimisation."""
    converted = convert.convert(source.sources.sections, source.code, source.abi, V3)
    return memoryview(converted.make_encoder(source.elf, LEVELS[level]).encode(address))


def rows_of(source: Input) -> int:
    """CFA, FP and RA rows of the CFI, without those that repeat the one before."""
    table, *_ = convert.convert(source.sources.sections, source.code, source.abi, V3)
    return len(table.row_start)
