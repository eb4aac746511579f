"""Finds an ELF file's executable code: address ranges with their file offsets."""

from __future__ import annotations

from array import array
from bisect import bisect_right

from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.elf.code_bytes.padding import padding_states
from sframegen.elf.columns import Areas

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sframegen.elf.file import ElfFile


class CodeSegment(NamedTuple):
    """An executable segment's code: addresses [start, end), and the file offset of `start`."""

    start: int
    end: int
    offset: int


class CodeArea(NamedTuple):
    """A code range in a segment: addresses [start, end). `fate`: how bytes without CFI there are counted."""

    segment: CodeSegment
    start: int
    end: int
    fate: int = 0


def code_segments(elf: ElfFile) -> list[CodeSegment]:
    """Return the code segments by address. Raises FormatError if they overlap or reach past the end of the file."""
    loads = elf.executable_loads()
    vaddrs = [load.p_vaddr for load in loads]
    found: list[CodeSegment] = []
    for start, end in elf.executable_ranges():
        load = loads[bisect_right(vaddrs, start) - 1]
        elf.slice(load.p_offset, load.p_filesz, "PT_LOAD")
        if start < (found[-1].end if found else 0) or end != load.p_vaddr + load.p_filesz:
            raise elf.error(f"executable segments overlap at {start:#x}", "program header table")
        found.append(CodeSegment(start, end, load.p_offset + start - load.p_vaddr))
    return found


def areas_of(elf: ElfFile, parts: Iterable[CodeArea]) -> Areas:
    """Return the areas in the form that compiled code takes. `parts`: ascending, disjoint, each within its segment."""
    start, end, segment, offset, fate = array("Q"), array("Q"), array("Q"), array("Q"), bytearray()
    for part in parts:
        start.append(part.start)
        end.append(part.end)
        segment.append(part.segment.start)
        offset.append(part.segment.offset + part.start - part.segment.start)
        fate.append(part.fate)
    return Areas(elf.data, padding_states(elf.header.e_machine), start, end, segment, offset, fate)
