"""What must stay true of a file: where build-id, interpreter and program headers are, and the rules of its section."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sframegen import read
from sframegen.elf.file import open_elf
from sframegen.elf.notes import read_build_id, read_notes
from sframegen.elf.records import NT_GNU_BUILD_ID, PT, SHT

if TYPE_CHECKING:
    from pathlib import Path

    from sframegen.elf.file import ElfFile

PAGE = 4096  # of a mapped file, a core keeps the first


class Facts(NamedTuple):
    build_id: bytes | None
    build_id_in_first_page: bool  # with the program headers that lead to it
    interpreter_before_loads: bool
    headers_where_kernels_before_5_18_look: bool
    has_section: bool


def facts_of(file: Path) -> Facts:
    elf = open_elf(file)
    header = elf.header
    first = next(s for s in elf.segments if s.p_type == PT.LOAD)
    kinds = [s.p_type for s in elf.segments]
    ends = [note.offset + 36 for note in read_notes(elf) if note.type == NT_GNU_BUILD_ID and note.name == b"GNU\0"]
    headers_end = header.e_phoff + header.e_phentsize * len(elf.segments)
    return Facts(
        read_build_id(elf),
        bool(ends) and max(*ends, headers_end) <= PAGE,
        PT.INTERP in kinds and kinds.index(PT.INTERP) < kinds.index(PT.LOAD),
        all(s.p_vaddr == first.p_vaddr - first.p_offset + header.e_phoff for s in elf.segments if s.p_type == PT.PHDR),
        PT.GNU_SFRAME in kinds,
    )


def same_rules(before: Path, after: Path) -> str:
    """What differs; nothing if the segment covers the section, and it says the same of the same code.

    A tool may move all addresses by as much: distances are from the call frame information.
    """
    old, new = open_elf(before), open_elf(after)
    segments = [(s.p_vaddr, s.p_offset, s.p_filesz) for s in new.segments if s.p_type == PT.GNU_SFRAME]
    sections = [s.header[3:6] for s in new.sections if s.header.sh_type == SHT.GNU_SFRAME]
    if len(segments) != 1 or (new.sections and segments != sections):
        return f"PT_GNU_SFRAME {segments}, .sframe {sections}"
    if (*section_bytes(old),) == (*section_bytes(new),):
        return ""
    tables = [read(file).table for file in (before, after)]
    bases = [base_of(elf) for elf in (old, new)]
    if [start - bases[0] for start in tables[0].start] != [start - bases[1] for start in tables[1].start]:
        return "other functions"
    for number in range(len(tables[0].start)):
        one, two = ((t.size[number], t.kinds[t.kind[number]], t.rows(number)) for t in tables)
        if one != two:
            return f"other rules of the function at {tables[0].start[number]:#x}"
    return ""


def section_bytes(elf: ElfFile) -> tuple[int, bytes]:
    """The section, and its distance from the base."""
    [segment] = [s for s in elf.segments if s.p_type == PT.GNU_SFRAME]
    return segment.p_vaddr - base_of(elf), bytes(elf.slice(segment.p_offset, segment.p_filesz, "PT_GNU_SFRAME"))


def base_of(elf: ElfFile) -> int:
    """The address of the call frame information's index, which stays where it is beside the code; or of the code."""
    return next((s.p_vaddr for s in elf.segments if s.p_type == PT.GNU_EH_FRAME), elf.executable_loads()[0].p_vaddr)
