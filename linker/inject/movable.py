"""Finds the movable pieces of a linked file: metadata reached only through program headers and dynamic tags, never from code."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from sframegen.base.errors import FormatError
from sframegen.elf.dynamic import DT, Dyn
from sframegen.elf.notes import read_notes_at
from sframegen.elf.ranges import Extent, find_gaps, find_overlapping, join_extents
from sframegen.elf.records import EHDR_SIZE, PHDR_SIZE, PT, SHDR_SIZE, SHF, SHT, Phdr, constant_names

if TYPE_CHECKING:
    from sframegen.elf.file import ElfFile, Section

FIRST_PAGE = 0x1000  # bytes: core files keep this part of mapped files, and kernels look for the build-id in it
NEW_HEADERS = 3  # at most: PT_LOAD, PT_GNU_SFRAME, and a second PT_LOAD in the tail layout (layout.py)
MAX_PADDING = 15  # bytes that may lie between loaded neighbours in a file without section headers
FILLERS = b"\0XZ"  # linkers pad with zeros; patchelf overwrites data that it moved with X or, in later versions, Z

# Section types that only the dynamic section names -> the tag that must name them.
TAG_OF_TYPE = {
    SHT.HASH: DT.HASH,
    SHT.GNU_HASH: DT.GNU_HASH,
    SHT.DYNSYM: DT.SYMTAB,
    SHT.STRTAB: DT.STRTAB,
    SHT.GNU_VERSYM: DT.VERSYM,
    SHT.GNU_VERDEF: DT.VERDEF,
    SHT.GNU_VERNEED: DT.VERNEED,
}
# Notes that readers find by segment or section. Other notes stay: code may use them, and some (Crashpad's) hold offsets to data.
MOVABLE_NOTES = {
    *((b"GNU\0", kind) for kind in range(1, 6)),  # ABI tag, hardware capabilities, build-id, gold's version, properties
    (b"Go\0\0", 4),  # build-id
    (b"FDO\0", 0xCAFE1A7E),  # package
    (b"FDO\0", 0x407C0C0A),  # dlopen
    (b"Android\0", 1),
}
MOVABLE_TAGS = tuple(TAG_OF_TYPE.values())
# Every tag that holds an address: without section headers, a range ends where the next one begins.
POINTER_TAGS = {
    *MOVABLE_TAGS, DT.PLTGOT, DT.RELA, DT.INIT, DT.FINI, DT.REL, DT.JMPREL, DT.INIT_ARRAY, DT.FINI_ARRAY, DT.PREINIT_ARRAY, DT.RELR,
}  # fmt: skip
MOVABLE_SEGMENTS = (PT.INTERP, PT.NOTE, PT.GNU_PROPERTY)
FIXED_SEGMENTS = (PT.DYNAMIC, PT.TLS, PT.GNU_EH_FRAME, PT.GNU_RELRO)  # code or the loader reaches their contents by address
SEGMENT_NAMES, TAG_NAMES = constant_names(PT), constant_names(DT)


def find_movable_and_fixed(elf: ElfFile, dynamic: list[Dyn], table: Extent, load: Phdr | None) -> tuple[list[Extent], list[Extent]]:
    """Return (movable ranges, fixed ranges), each ascending and disjoint.

    `table`: the program header table; `load`: the PT_LOAD that maps it. Bytes near the table, where it may grow, that no header
    explains count as fixed, because code may use them.
    """
    candidates, fixed = split_metadata(elf, dynamic)
    load_start, load_end = (load.p_offset, load.p_offset + load.p_filesz) if load else (0, 0)
    movable: list[Extent] = []
    blocked: list[Extent] = []
    for piece in candidates:
        is_free = load_start <= piece.start and piece.end <= load_end and not find_overlapping(fixed, piece.start, piece.end)
        (movable if is_free else blocked).append(piece)
    # The old section header table may be overwritten, since a new one is written elsewhere. Go's linker puts it right here.
    replaced = [Extent(elf.header.e_shoff, elf.header.e_shoff + elf.shnum * SHDR_SIZE)] if elf.sections else []
    explained = join_extents([*candidates, *fixed, *replaced])
    # The table grows up to there, and a build-id in its way may move within the first page.
    needed_end = max(FIRST_PAGE, table.end + NEW_HEADERS * PHDR_SIZE)
    # Section headers name all loaded data: filler of any length is unused. Without them, only as much as alignment leaves.
    max_filler = len(elf.data) if elf.sections else MAX_PADDING
    unexplained = find_unexplained_ranges(elf, explained, table.end, min(needed_end, load_end), max_filler)
    # Beyond the segment nothing is loaded: filler of any length is unused.
    unexplained += find_unexplained_ranges(elf, explained, max(table.end, load_end), needed_end, len(elf.data))
    return movable, join_extents([*fixed, *blocked, *unexplained, Extent(len(elf.data), 1 << 63, ("the end of the file",))])


def split_metadata(elf: ElfFile, dynamic: list[Dyn]) -> tuple[list[Extent], list[Extent]]:
    """Return (ranges of metadata that code does not reach, all others that headers name), each ascending and disjoint."""
    tags: dict[int, list[int]] = {}
    for entry in dynamic:
        tags.setdefault(entry.tag, []).append(entry.value)
    movable = {section.number for section in elf.sections if may_move(elf, section, tags)}
    named = [named_section_extent(elf.sections[number]) for number in movable] if elf.sections else dynamic_tag_ranges(elf, tags)
    return join_extents([*movable_segments(elf), *named]), fixed_ranges(elf, movable)


def may_move(elf: ElfFile, section: Section, tags: dict[int, list[int]]) -> bool:
    """Return True if code cannot refer to the read-only section: readers find it by a dynamic tag or a program header."""
    header = section.header
    is_constant = header.sh_flags & (SHF.ALLOC | SHF.WRITE | SHF.EXECINSTR) == SHF.ALLOC
    if not is_constant or not header.sh_size or not is_valid_align(header.sh_addralign):
        return False
    if header.sh_type in TAG_OF_TYPE:
        return tags.get(TAG_OF_TYPE[header.sh_type]) == [header.sh_addr]
    if header.sh_type == SHT.NOTE:
        return may_move_notes(elf, header.sh_offset, header.sh_size, header.sh_addralign)
    return any(s.p_type == PT.INTERP and (s.p_offset, s.p_filesz) == (header.sh_offset, header.sh_size) for s in elf.segments)


def may_move_notes(elf: ElfFile, offset: int, size: int, align: int) -> bool:
    """Return True if all bytes belong to notes in MOVABLE_NOTES. objcopy may leave other bytes in a PT_NOTE."""
    try:
        return all((note.name, note.type) in MOVABLE_NOTES for note in read_notes_at(elf, offset, size, align))
    except FormatError:
        return False


def may_move_segment(elf: ElfFile, segment: Phdr) -> bool:
    """Return True if code cannot refer to the segment's bytes: readers find them by its program header."""
    if segment.p_type == PT.NOTE and not may_move_notes(elf, segment.p_offset, segment.p_filesz, segment.p_align):
        return False
    return segment.p_type in MOVABLE_SEGMENTS and is_valid_align(segment.p_align)


def is_valid_align(align: int) -> bool:
    return align & (align - 1) == 0 and align <= FIRST_PAGE


def named_section_extent(section: Section) -> Extent:
    return section.header.extent._replace(names=(section.name,), align=max(1, section.header.sh_addralign))


def movable_segments(elf: ElfFile) -> list[Extent]:
    """Return the ranges of notes and the interpreter's name; without names if section headers have them."""
    return [
        s.extent._replace(names=() if elf.sections else (SEGMENT_NAMES[s.p_type],), align=max(1, s.p_align))
        for s in elf.segments
        if s.p_filesz and may_move_segment(elf, s)
    ]


def dynamic_tag_ranges(elf: ElfFile, tags: dict[int, list[int]]) -> list[Extent]:
    """Return the range that each movable dynamic tag points to, for a file without section headers.

    A range ends at the next address that a tag or segment names, or earlier if another tag gives its size.
    """
    loads = [segment for segment in elf.segments if segment.p_type == PT.LOAD]
    tag_at: dict[int, int] = {}  # file offset -> the tag that points to it
    for tag in POINTER_TAGS & tags.keys():
        address = tags[tag][0]
        tag_at.update({s.p_offset + address - s.p_vaddr: tag for s in loads if 0 <= address - s.p_vaddr < s.p_filesz})
    edges = sorted({*tag_at, *(s.p_offset for s in elf.segments if s.p_filesz), *(s.p_offset + s.p_filesz for s in loads)})
    sizes = {DT.STRTAB: tags.get(DT.STRSZ, [0])[0]}
    return [
        Extent(start, min(end, start + sizes.get(tag_at[start], end)), (TAG_NAMES[tag_at[start]],), 8)
        for start, end in itertools.pairwise(edges)
        if tag_at.get(start) in MOVABLE_TAGS
    ]


def fixed_ranges(elf: ElfFile, movable: set[int]) -> list[Extent]:
    """Return the ranges of sections and segments in the file that are not movable."""
    ranges = [
        named_section_extent(section)
        for section in elf.sections
        if section.number not in movable and section.header.sh_size and section.header.sh_type not in (SHT.NULL, SHT.NOBITS)
    ]
    segments = [s for s in elf.segments if s.p_filesz]
    ranges += [s.extent._replace(names=(SEGMENT_NAMES[s.p_type],)) for s in segments if s.p_type in FIXED_SEGMENTS]
    notes = [s.extent for s in segments if s.p_type == PT.NOTE and not may_move_segment(elf, s)]
    ranges += [note._replace(names=("a note that code may reach",)) for note in notes]
    return join_extents([*ranges, Extent(0, EHDR_SIZE, ("ELF header",))])


def find_unexplained_ranges(elf: ElfFile, explained: list[Extent], start: int, end: int, max_filler: int) -> list[Extent]:
    """Return the gaps between explained ranges in [start, end) that are longer than `max_filler` or contain more than FILLERS."""
    holes = find_gaps(explained, start, min(end, len(elf.data)))
    return [
        Extent(*hole, ("bytes that no header explains",))
        for hole in holes
        if hole[1] - hole[0] > max_filler or bytes(elf.data[slice(*hole)]).strip(FILLERS)
    ]
