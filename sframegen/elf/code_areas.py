"""Finds the executable code of an ELF file, as address ranges with their file offsets."""

from __future__ import annotations

from array import array
from bisect import bisect_right

from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.elf.code_bytes.padding import padding_states
from sframegen.elf.columns import Areas
from sframegen.elf.records import SHF, SHT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sframegen.elf.file import ElfFile, Section


class CodeSegment(NamedTuple):
    """The code in an executable segment: addresses [start, end), and the file offset of `start`."""

    start: int
    end: int
    offset: int


class CodeArea(NamedTuple):
    """A range [start, end) of addresses in a segment. `category`: how its bytes without CFI are counted (docs/coverage.md)."""

    segment: CodeSegment
    start: int
    end: int
    category: int = 0


def is_code(section: Section) -> bool:
    header = section.header
    flags = SHF.ALLOC | SHF.EXECINSTR
    return header.sh_flags & flags == flags and header.sh_type != SHT.NOBITS and header.sh_size > 0


def code_segments(elf: ElfFile) -> list[CodeSegment]:
    """Return the code segments by ascending address. Raises FormatError if they overlap or reach past the end of the file."""
    loads = elf.executable_loads()
    vaddrs = [load.p_vaddr for load in loads]
    segments: list[CodeSegment] = []
    for start, end in elf.executable_ranges():
        load = loads[bisect_right(vaddrs, start) - 1]
        elf.slice(load.p_offset, load.p_filesz, "PT_LOAD")
        if start < (segments[-1].end if segments else 0) or end != load.p_vaddr + load.p_filesz:
            raise elf.error(f"executable segments overlap at {start:#x}", "program header table")
        segments.append(CodeSegment(start, end, load.p_offset + start - load.p_vaddr))
    return segments


def build_areas(elf: ElfFile, code_areas: Iterable[CodeArea]) -> Areas:
    """Return the areas as columns for compiled code. `code_areas`: ascending, disjoint, each within its segment."""
    start, end, segment, offset, category = array("Q"), array("Q"), array("Q"), array("Q"), bytearray()
    for area in code_areas:
        start.append(area.start)
        end.append(area.end)
        segment.append(area.segment.start)
        offset.append(area.segment.offset + area.start - area.segment.start)
        category.append(area.category)
    states = padding_states(elf.header.e_machine)
    return Areas(data=elf.data, padding=states, start=start, end=end, segment=segment, offset=offset, category=category)
