"""Gaps that open between the bytes of a file for new ones: the bytes keep their order and values, and their offsets grow."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from linker.files.copying import FilePart

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeAlias

    from sframegen.elf.ranges import Range
    from sframegen.elf.records import Phdr


WORD = 1 << 64
PAGE = 0x1000  # bytes: by how much a segment may grow in its last page


class Gap(NamedTuple):
    at: int  # offset in the original of the first byte after the gap
    size: int  # bytes


Gaps: TypeAlias = "tuple[Gap, ...]"  # ascending, disjoint


def total_size(gaps: Gaps) -> int:
    """Bytes."""
    return sum(gap.size for gap in gaps)


def moved(gaps: Gaps, offset: int) -> int:
    """Return the new offset of a byte of the original."""
    return offset + sum(gap.size for gap in gaps if gap.at <= offset)


def moved_end(gaps: Gaps, end: int) -> int:
    """Return the new offset of the end of a range."""
    return end + sum(gap.size for gap in gaps if gap.at < end)


def moved_empty(gaps: Gaps, offset: int) -> int:
    """Return the new offset of what has no bytes in the file: only a gap before everything counts."""
    return offset + sum(gap.size for gap in gaps if gap.at == 0)


def moved_back(gaps: Gaps, offset: int) -> int:
    """Return the offset in the original of a byte that is in no gap."""
    return offset - sum(end - start for start, end in opened_gaps(gaps) if start <= offset)


def opened_gaps(gaps: Gaps) -> list[Range]:
    """Return the gaps in the new file: (start, end)."""
    return [(moved_end(gaps, gap.at), moved(gaps, gap.at)) for gap in gaps]


def parts_of(gaps: Gaps, size: int) -> list[FilePart]:
    """Return the parts of an original of that size, from the original to the new file."""
    return spread(gaps, [FilePart(0, 0, size)])


def spread(gaps: Gaps, parts: Iterable[FilePart]) -> list[FilePart]:
    """Open the gaps in a file that is made of these parts."""
    found = []
    for start, to, size in parts:
        cuts = [gap.at for gap in gaps if to < gap.at < to + size]
        for at, end in pairwise([to, *cuts, to + size]):
            found.append(FilePart(start + at - to, moved(gaps, at), end - at))
    return found


def moved_segment(gaps: Gaps, segment: Phdr) -> Phdr:
    """Return its header in the new file; an alignment that its offset no longer has becomes the largest that it has."""
    if not (segment.p_filesz or segment.p_memsz):
        return segment
    offset = (moved if segment.p_filesz else moved_empty)(gaps, segment.p_offset)
    bias = segment.p_vaddr - offset
    align = segment.p_align if not segment.p_align or bias % segment.p_align == 0 else bias & -bias
    return segment._replace(p_offset=offset, p_align=align)


def is_grown(load: Phdr, other: Phdr, gaps: Gaps) -> bool:
    """True if it has the same bytes at the same addresses: perhaps more after them in the last page, or a gap before them."""
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
