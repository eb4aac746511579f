"""Gaps for new bytes between a file's bytes, which keep their order and values while their offsets grow."""

from __future__ import annotations

from itertools import pairwise

from linker.files.copying import FilePart
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeAlias

    from sframegen.elf.ranges import Range
    from sframegen.elf.records import Phdr


WORD = 1 << 64
PAGE = 0x1000  # bytes: the limit for a segment's growth in its last page


class Gap(NamedTuple):
    """A gap that opens between two bytes of the original."""

    at: int  # offset in the original of the first byte after the gap
    size: int  # bytes


Gaps: TypeAlias = "tuple[Gap, ...]"  # ascending, disjoint


def total_size(gaps: Gaps) -> int:
    """Return the total size of the gaps in bytes."""
    return sum(gap.size for gap in gaps)


def moved(gaps: Gaps, offset: int) -> int:
    """Return the new offset of a byte of the original."""
    return offset + sum(gap.size for gap in gaps if gap.at <= offset)


def moved_end(gaps: Gaps, end: int) -> int:
    """Return the new offset of the end of a range."""
    return end + sum(gap.size for gap in gaps if gap.at < end)


def moved_empty(gaps: Gaps, offset: int) -> int:
    """Return the new offset of a segment or section without bytes in the file: only a gap at offset 0 moves it."""
    return offset + sum(gap.size for gap in gaps if gap.at == 0)


def moved_back(gaps: Gaps, offset: int) -> int:
    """Return the original offset of a byte that is not in a gap."""
    return offset - sum(end - start for start, end in opened_gaps(gaps) if start <= offset)


def opened_gaps(gaps: Gaps) -> list[Range]:
    """Return (start, end) of each gap in the new file."""
    return [(moved_end(gaps, gap.at), moved(gaps, gap.at)) for gap in gaps]


def parts_of(gaps: Gaps, size: int) -> list[FilePart]:
    """Return the parts to copy from an original of that size to the new file."""
    return spread(gaps, [FilePart(0, 0, size)])


def spread(gaps: Gaps, parts: Iterable[FilePart]) -> list[FilePart]:
    """Return these parts of a file, split and moved so that the gaps are open."""
    found = []
    for start, to, size in parts:
        cuts = [gap.at for gap in gaps if to < gap.at < to + size]
        for at, end in pairwise([to, *cuts, to + size]):
            found.append(FilePart(start + at - to, moved(gaps, at), end - at))
    return found


def moved_segment(gaps: Gaps, segment: Phdr) -> Phdr:
    """Return the segment's header in the new file; its alignment is reduced to what the new offset has."""
    if not (segment.p_filesz or segment.p_memsz):
        return segment
    offset = (moved if segment.p_filesz else moved_empty)(gaps, segment.p_offset)
    bias = segment.p_vaddr - offset
    align = segment.p_align if not segment.p_align or bias % segment.p_align == 0 else bias & -bias
    return segment._replace(p_offset=offset, p_align=align)


def is_grown(load: Phdr, other: Phdr, gaps: Gaps) -> bool:
    """Return True if `other` has the bytes of `load` at the same addresses, perhaps with a gap before or more in the last page."""
    pages = gaps[0].size if gaps and load.p_filesz and gaps[0].at == load.p_offset == 0 else 0
    there = moved_segment(gaps, load)
    there = there._replace(
        p_offset=there.p_offset - pages,
        p_vaddr=there.p_vaddr - pages,
        p_paddr=(there.p_paddr - pages) % WORD,
        p_filesz=other.p_filesz,
        p_memsz=other.p_memsz,
        p_align=other.p_align,
    )
    growth = other.p_filesz - load.p_filesz - pages
    return there == other and 0 <= growth < PAGE and other.p_memsz >= load.p_memsz + pages
