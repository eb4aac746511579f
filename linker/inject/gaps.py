"""Translates file offsets between an original and a new file in which gaps for new bytes open between the original's bytes.

The new file has all bytes of the original in their order. Those after a gap have a higher offset, and the same address.
"""

from __future__ import annotations

from itertools import pairwise

from linker.files.copying import FilePart
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.elf.records import ADDRESS_SPACE, SHF, SHT

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeAlias

    from sframegen.elf.ranges import Range
    from sframegen.elf.records import Phdr, Shdr

PAGE = 0x1000  # bytes: a segment may only grow within its last page


class Gap(NamedTuple):
    """A gap that opens between two bytes of the original."""

    at: int  # offset in the original of the first byte after the gap
    size: int  # bytes


Gaps: TypeAlias = "tuple[Gap, ...]"  # ascending, disjoint


def total_size(gaps: Gaps) -> int:
    return sum(gap.size for gap in gaps)


def to_new_offset(gaps: Gaps, offset: int) -> int:
    """Return the offset in the new file of a byte of the original."""
    return offset + sum(gap.size for gap in gaps if gap.at <= offset)


def to_new_end(gaps: Gaps, end: int) -> int:
    """Return the offset in the new file of the end of a range, which stays before a gap that opens there."""
    return end + sum(gap.size for gap in gaps if gap.at < end)


def empty_to_new_offset(gaps: Gaps, offset: int) -> int:
    """Return the new offset of a segment or section without bytes in the file (.bss), which only a gap at offset 0 moves."""
    return offset + sum(gap.size for gap in gaps if gap.at == 0)


def to_original_offset(gaps: Gaps, offset: int) -> int:
    """Return the offset in the original of a byte of the new file that is not in a gap."""
    return offset - sum(end - start for start, end in gaps_in_new_file(gaps) if start <= offset)


def gaps_in_new_file(gaps: Gaps) -> list[Range]:
    """Return (start, end) of each gap in the new file."""
    return [(to_new_end(gaps, gap.at), to_new_offset(gaps, gap.at)) for gap in gaps]


def parts_to_copy(gaps: Gaps, size: int) -> list[FilePart]:
    """Return the parts to copy from an original of `size` bytes to the new file."""
    return split_at_gaps(gaps, [FilePart(0, 0, size)])


def split_at_gaps(gaps: Gaps, parts: Iterable[FilePart]) -> list[FilePart]:
    """Return the parts, split where a gap opens in the copy, and shifted by the sizes of the gaps before them."""
    result = []
    for start, target, size in parts:
        cuts = [gap.at for gap in gaps if target < gap.at < target + size]
        for at, end in pairwise([target, *cuts, target + size]):
            result.append(FilePart(start + at - target, to_new_offset(gaps, at), end - at))
    return result


def shift_segment(gaps: Gaps, segment: Phdr) -> Phdr:
    """Return the segment's header in the new file, with a smaller alignment if its new offset needs that."""
    if not (segment.p_filesz or segment.p_memsz):
        return segment
    offset = (to_new_offset if segment.p_filesz else empty_to_new_offset)(gaps, segment.p_offset)
    bias = segment.p_vaddr - offset  # must be a multiple of the alignment
    is_aligned = not segment.p_align or bias % segment.p_align == 0
    align = segment.p_align if is_aligned else bias & -bias  # the largest power of two of which bias is a multiple
    return segment._replace(p_offset=offset, p_align=align)


def shift_header(gaps: Gaps, header: Shdr) -> Shdr:
    """Return the section's header with its offset in the new file."""
    if header.sh_type == SHT.NULL:  # it replaced the header of a removed section
        return header
    has_no_bytes = header.sh_type == SHT.NOBITS or (header.sh_flags & SHF.ALLOC and not header.sh_size)
    return header._replace(sh_offset=(empty_to_new_offset if has_no_bytes else to_new_offset)(gaps, header.sh_offset))


def is_grown(load: Phdr, other: Phdr, gaps: Gaps) -> bool:
    """Return True if `other` maps the bytes of `load` at the same addresses.

    It may begin earlier, with inserted pages, and end later within its last page.
    """
    inserted_size = gaps[0].size if gaps and load.p_filesz and gaps[0].at == load.p_offset == 0 else 0
    expected = shift_segment(gaps, load)
    expected = expected._replace(
        p_offset=expected.p_offset - inserted_size,
        p_vaddr=expected.p_vaddr - inserted_size, p_paddr=(expected.p_paddr - inserted_size) % ADDRESS_SPACE,
        p_filesz=other.p_filesz, p_memsz=other.p_memsz, p_align=other.p_align,
    )  # fmt: skip
    growth = other.p_filesz - load.p_filesz - inserted_size
    return expected == other and 0 <= growth < PAGE and other.p_memsz >= load.p_memsz + inserted_size
