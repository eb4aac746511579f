"""Where bytes of an original are once gaps have opened between them: each place, the one before it, and back."""

from __future__ import annotations

from linker.files.copying import FilePart
from linker.inject.gaps import (
    Gap,
    empty_to_new_offset,
    gaps_in_new_file,
    is_grown,
    parts_to_copy,
    shift_segment,
    split_at_gaps,
    to_new_end,
    to_new_offset,
    to_original_offset,
    total_size,
)
from sframegen.elf.records import PT, Phdr
from tests.support.loops import for_each

GAPS = (Gap(0, 0x1000), Gap(0x200, 0x30))
LOAD = Phdr(PT.LOAD, 4, 0x100, 0x40_0100, 0x40_0100, 0x80, 0x90, 0x1000)


def test_bytes_after_a_gap_move_by_its_size() -> None:
    """The end of a range does not reach across a gap; what has no bytes moves only with everything."""
    for old, new in ((0, 0x1000), (1, 0x1001), (0x1FF, 0x11FF), (0x200, 0x1230), (0x300, 0x1330)):
        assert to_new_offset(GAPS, old) == new
        assert to_original_offset(GAPS, new) == old
        assert to_new_offset((), old) == to_original_offset((), old) == old
    for old, new in ((0, 0), (1, 0x1001), (0x200, 0x1200), (0x201, 0x1231)):
        assert to_new_end(GAPS, old) == new
    for old, new in ((0, 0x1000), (0x200, 0x1200), (0x201, 0x1201)):
        assert empty_to_new_offset(GAPS, old) == new
        assert empty_to_new_offset(GAPS[1:], old) == old


def test_parts_are_cut_where_a_gap_opens_within_them() -> None:
    assert gaps_in_new_file(GAPS) == [(0, 0x1000), (0x1200, 0x1230)]
    assert total_size(GAPS) == 0x1030
    assert parts_to_copy(GAPS, 0x300) == [FilePart(0, 0x1000, 0x200), FilePart(0x200, 0x1230, 0x100)]
    assert parts_to_copy(GAPS, 0x200) == [FilePart(0, 0x1000, 0x200)]
    assert split_at_gaps(GAPS, [FilePart(0x10, 0x180, 0x80), FilePart(0x500, 0x200, 0x10)]) == [
        FilePart(0x10, 0x1180, 0x80),
        FilePart(0x500, 0x1230, 0x10),
    ]
    assert split_at_gaps(GAPS, [FilePart(0x10, 0x180, 0x81)]) == [FilePart(0x10, 0x1180, 0x80), FilePart(0x90, 0x1230, 1)]


def test_a_segment_moves_with_its_bytes() -> None:
    """Without bytes in the file it moves only with everything."""
    assert shift_segment(GAPS, LOAD) == LOAD._replace(p_offset=0x1100)
    after = LOAD._replace(p_offset=0x200, p_vaddr=0x40_0200)
    assert shift_segment(GAPS, after) == after._replace(p_offset=0x1230, p_align=0x10)
    assert shift_segment(GAPS, after._replace(p_align=0x10)).p_align == 0x10
    assert shift_segment(GAPS, after._replace(p_align=0)).p_align == 0
    bss = after._replace(p_filesz=0)
    assert shift_segment(GAPS, bss) == bss._replace(p_offset=0x1200)
    assert shift_segment(GAPS, bss._replace(p_memsz=0)) == bss._replace(p_memsz=0)
    assert shift_segment(GAPS, LOAD._replace(p_memsz=0)) == LOAD._replace(p_memsz=0, p_offset=0x1100)


FIRST = LOAD._replace(p_offset=0, p_vaddr=0x40_0000, p_paddr=0x40_0000)
BEFORE = FIRST._replace(p_vaddr=0x3F_F000, p_paddr=0x3F_F000, p_filesz=0x1080, p_memsz=0x1090)


@for_each(
    ("old", "fields", "grown"),
    [
        (LOAD, {}, True),
        (LOAD, {"p_filesz": 0x81}, True),
        (LOAD, {"p_filesz": 0x107F, "p_memsz": 0x1080}, True),
        (LOAD, {"p_filesz": 0x1080, "p_memsz": 0x1080}, False),
        (LOAD, {"p_filesz": 0x7F}, False),
        (LOAD, {"p_memsz": 0x8F}, False),
        (LOAD, {"p_memsz": 0x91}, True),
        (LOAD, {"p_align": 0x10}, True),
        (LOAD, {"p_vaddr": 0x40_0101}, False),
        (LOAD, {"p_flags": 5}, False),
    ],
)
def test_a_load_may_grow_in_its_last_page(old: Phdr, fields: dict[str, int], grown: bool) -> None:
    assert is_grown(old, old._replace(**fields), ()) is grown


@for_each(
    ("fields", "grown"),
    [
        ({}, True),
        ({"p_filesz": 0x107F}, False),
        ({"p_filesz": 0x1081}, True),
        ({"p_memsz": 0x108F}, False),
        ({"p_vaddr": 0x40_0000}, False),
        ({"p_paddr": 0x40_0000}, False),
        ({"p_offset": 0x1000}, False),
    ],
)
def test_the_first_load_begins_with_the_gap_before_it(fields: dict[str, int], grown: bool) -> None:
    assert is_grown(FIRST, BEFORE._replace(**fields), GAPS) is grown


def test_only_a_load_with_bytes_after_a_gap_at_0_begins_with_it() -> None:
    for old in (FIRST._replace(p_filesz=0), LOAD):
        new = old._replace(p_offset=old.p_offset + 0x1000)
        assert is_grown(old, new, GAPS)
    assert is_grown(FIRST, FIRST, GAPS[1:])
    assert is_grown(FIRST._replace(p_paddr=0), BEFORE._replace(p_paddr=(1 << 64) - 0x1000), GAPS)  # physical addresses wrap
