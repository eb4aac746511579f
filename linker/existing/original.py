"""Restores the original of a changed file from its undo record, in memory.

The checksum only shows that the record belongs to the file. Other tools may have changed other bytes since, or a record may be
forged, so `is_plausible` also compares the original with the file: the change may only have been one that sframegen makes.
"""

from __future__ import annotations

import errno
import mmap
import os
from contextlib import contextmanager

from linker.existing.in_place import find_own_loads
from linker.files.copying import LARGE, copy_parts, ranges_are_equal
from linker.inject import undo_record
from linker.inject.gaps import is_grown, shift_segment
from linker.inject.image import MAX_PROGRAM_HEADERS, image_end
from linker.inject.movable import FIRST_PAGE, MOVABLE_SEGMENTS
from linker.inject.plan import SPARE_HEADERS
from sframegen.base.errors import FormatError
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.elf.file import ElfFile, open_regular, opened_elf
from sframegen.elf.ranges import Extent, find_gaps, find_overlapping, index_of_containing_range, join_extents
from sframegen.elf.records import PF, PHDR_SIZE, PT, SHDR_SIZE, SHF, SHT
from sframegen.format.locate import is_sframe_section

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from linker.files.copying import FilePart

# A change adds, removes or moves such segments, or makes them larger.
CHANGING_SEGMENTS = {PT.NULL, PT.LOAD, PT.PHDR, PT.GNU_SFRAME, *MOVABLE_SEGMENTS}


class Original(NamedTuple):
    """An original file, and the undo record that restored it."""

    elf: ElfFile
    record: undo_record.UndoRecord


def restore_original(elf: ElfFile) -> Original | None:
    """Restore the file's original in memory; return None if it has no undo record, or one that no longer fits the file."""
    record = undo_record.read_verified(elf.data)
    if record is None or not record.original_size:
        return None
    try:
        original = map_with_writes(elf, record.parts, record.overwritten)
        return Original(original, record) if is_plausible(original, elf, record) else None
    except FormatError:
        return None


def check_undo_record(elf: ElfFile, result: Path) -> list[str]:
    """Return findings about the undo record of the file at `result`, which must restore `elf`."""
    with opened_elf(result) as changed:
        original = restore_original(changed)
        if original is None:
            return ["its undo record would not be used"]
        record = original.record
        is_equal = len(elf.data) == record.original_size
        is_equal = is_equal and all(elf.data[offset : offset + len(data)] == data for offset, data in record.overwritten)
        overwritten = join_extents(Extent(offset, offset + len(data)) for offset, data in record.overwritten)
        for start, to, size in record.parts:
            for at, end in find_gaps(overwritten, to, to + size):  # all other bytes come from the changed file
                is_equal = is_equal and ranges_are_equal(elf, at, changed, start + at - to, end - at)
        return [] if is_equal else ["its undo record does not restore the original"]


def map_with_writes(elf: ElfFile, parts: Sequence[FilePart], writes: Iterable[tuple[int, bytes | memoryview]]) -> ElfFile:
    """Return a memory-mapped file that is made of these parts and writes. The first part is its beginning.

    If possible, `elf` is mapped again, which only takes memory for changed pages; otherwise all parts are copied to memory.
    """
    first, *others = parts
    is_mapped = first.start % mmap.ALLOCATIONGRANULARITY == 0 and sum(part.size for part in others) < LARGE
    with reopened_file(elf) if is_mapped else copied_to_memory(elf, parts) as descriptor:
        start = first.start if is_mapped else 0
        size = max(part.to + part.size for part in parts)
        mapped = mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY, offset=start)
    copies = ((to, elf.data[start : start + count]) for start, to, count in others) if is_mapped else ()
    for offset, data in (*copies, *writes):
        mapped[offset : offset + len(data)] = data
    return ElfFile(memoryview(mapped).toreadonly(), elf.name)


@contextmanager
def reopened_file(elf: ElfFile) -> Iterator[int]:
    """Yield a new descriptor of the file. Raises OSError if its size has changed since it was opened."""
    descriptor = open_regular(elf.name, elf.name) if elf.descriptor is None else os.dup(elf.descriptor)
    try:
        if os.fstat(descriptor).st_size != len(elf.data):
            raise OSError(errno.EBUSY, "the file changed while being read", elf.name)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def copied_to_memory(elf: ElfFile, parts: Sequence[FilePart]) -> Iterator[int]:
    """Yield the descriptor of an unnamed file in memory with copies of these parts."""
    with os.fdopen(os.memfd_create("original", os.MFD_CLOEXEC), "wb") as copy:
        copy_parts(elf, copy, parts)
        copy.flush()
        yield copy.fileno()


def is_plausible(original: ElfFile, elf: ElfFile, record: undo_record.UndoRecord) -> bool:
    """Return True if `elf` has the code and data of `original` at the same addresses, and new bytes only where we add them."""
    if max(original.phnum, elf.phnum) > MAX_PROGRAM_HEADERS:
        return False
    table_fields = {field: getattr(elf.header, field) for field in ("e_phoff", "e_phnum", "e_shoff", "e_shnum", "e_shstrndx")}
    expected = [shift_segment(record.gaps, s) for s in original.segments if s.p_type not in CHANGING_SEGMENTS]
    changeable, executable = find_changeable_ranges(original, elf), find_code_ranges(original, elf)
    end_of_loads = max((s.p_offset + s.p_filesz for s in original.segments if s.p_type == PT.LOAD and s.p_filesz), default=0)
    return (
        original.header._replace(**table_fields) == elf.header
        and all(segment in elf.segments for segment in expected)
        and keeps_loads(original, elf, record)
        and all(gap.at == 0 or gap.at >= end_of_loads for gap in record.gaps)
        and not any(find_gaps(changeable, offset, offset + len(data)) for offset, data in record.overwritten)
        and not any(find_overlapping(executable, offset, offset + len(data)) for offset, data in record.overwritten)
    )


def find_code_ranges(original: ElfFile, elf: ElfFile) -> list[Extent]:
    """Return the ranges of executable sections, and of executable PT_LOADs that do not begin with the headers, without metadata."""
    ranges = [s.header.extent for s in original.sections if s.header.sh_flags & SHF.EXECINSTR and s.header.sh_size]
    metadata = join_extents([*find_metadata_ranges(original), program_header_range(elf)])
    for load in original.segments:
        if load.p_type == PT.LOAD and load.p_flags & PF.X and load.p_offset:
            ranges += [Extent(*gap) for gap in find_gaps(metadata, load.extent.start, load.extent.end)]
    return join_extents(ranges)


def program_header_range(elf: ElfFile) -> Extent:
    """Return the range of a changed file's program header table, including the spare headers after it."""
    return Extent(elf.header.e_phoff, elf.header.e_phoff + (elf.phnum + SPARE_HEADERS) * PHDR_SIZE)


def find_metadata_ranges(elf: ElfFile) -> list[Extent]:
    """Return the ranges of the dynamic section and of symbol tables."""
    tables = [s.header.extent for s in elf.sections if s.header.sh_type in (SHT.SYMTAB, SHT.DYNSYM)]
    return join_extents(tables + [s.extent for s in elf.segments if s.p_type == PT.DYNAMIC])


def keeps_loads(original: ElfFile, elf: ElfFile, record: undo_record.UndoRecord) -> bool:
    """Return True if `elf` still has each PT_LOAD of the original, perhaps enlarged, and its other PT_LOADs map only new bytes.

    A PT_LOAD of the original that only maps an SFrame section may be missing.
    """
    remaining = [segment for segment in elf.segments if segment.p_type == PT.LOAD]
    own_numbers = find_own_loads(original)
    for number, load in ((n, s) for n, s in enumerate(original.segments) if s.p_type == PT.LOAD):
        if load.p_filesz:  # otherwise its offset has no meaning
            original.slice(load.p_offset, load.p_filesz, "PT_LOAD")
        match = next((other for other in remaining if is_grown(load, other, record.gaps)), None)
        if match is not None:
            remaining.remove(match)
        elif number not in own_numbers:
            return False
    added = undo_record.find_added_ranges(record.gaps, record.original_size)
    return all(load.p_flags == PF.R and index_of_containing_range(added, load.p_offset) is not None for load in remaining)


def find_changeable_ranges(original: ElfFile, elf: ElfFile) -> list[Extent]:
    """Return the ranges that a change may overwrite: headers, the first page, metadata, an earlier SFrame section and its record.

    An original has an earlier record if another tool edited it after it got a section.
    """
    headers = Extent(original.header.e_shoff, original.header.e_shoff + original.shnum * SHDR_SIZE)
    ranges = [Extent(0, FIRST_PAGE), program_header_range(elf), headers, *find_metadata_ranges(original)]
    ranges += [s.header.extent for s in original.sections if is_sframe_section(s)]
    ranges += [s.extent for s in original.segments if s.p_type == PT.GNU_SFRAME]
    superseded = undo_record.read_unverified(original.data)
    if superseded is not None and superseded.start >= image_end(original):
        ranges.append(Extent(superseded.start, len(original.data)))
    return join_extents(ranges)
