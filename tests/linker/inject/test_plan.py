"""What is planned for small files written here: layouts, what moves, what is refused and why."""

from __future__ import annotations

import struct

import pytest

from linker.inject import front_layout, layout, undo_record
from linker.inject.front_layout import can_extend_segment
from linker.inject.gaps import Gap
from linker.inject.image import read_image
from linker.inject.movable import dynamic_tag_ranges, may_move, named_section_extent
from linker.inject.plan import check_size, plan_injection
from sframegen.base.errors import FormatError, RefusedError, SframegenError
from sframegen.elf.dynamic import DT
from sframegen.elf.file import open_elf
from sframegen.elf.ranges import Extent, align_up
from sframegen.elf.records import PF, PHDR_SIZE, PT, SHF, SHN, SHT, ByteOrder, Phdr, Shdr
from tests.support.inputs.linker_inputs import (
    elf_of,
    inject_bytes,
    restored,
    section_named,
    section_of,
    small_file,
    with_header,
    with_many_sections,
    with_section,
    with_segment,
    without_sections,
)
from tests.support.loops import for_each
from tests.support.peers import Compiler

ORDERS: list[ByteOrder] = ["little", "big"]


@for_each("order", ORDERS)
def test_the_new_segment(order: ByteOrder) -> None:
    before = elf_of(small_file(order))
    after = elf_of(inject_bytes(bytes(before.data), 1000))
    loads = [s for s in after.segments if s.p_type == PT.LOAD]
    assert loads[1:-1] == [s for s in before.segments if s.p_type == PT.LOAD][1:]
    new, last = loads[-1], loads[-2]
    assert after.segments.index(new) == after.segments.index(last) + 1
    assert new.p_flags == PF.R
    assert new.p_align == 0x1000
    assert new.p_vaddr % 0x1000 == new.p_offset % 0x1000
    assert new.p_offset >= max(s.p_offset + s.p_filesz for s in before.segments)
    assert last.p_vaddr + last.p_memsz <= new.p_vaddr - new.p_vaddr % 0x1000
    (segment,) = [s for s in after.segments if s.p_type == PT.GNU_SFRAME]
    section = section_named(after, ".sframe")
    assert section.header[1:6] == (SHT.GNU_SFRAME, SHF.ALLOC, segment.p_vaddr, segment.p_offset, 1000)
    assert after.contents(section) == section_of(1000)[:1000]
    assert [s.name for s in after.sections if s != section] == [s.name for s in before.sections]


def test_what_is_loaded_comes_before_what_is_not() -> None:
    """In the file and in the section header table: dwz refuses others."""
    after = elf_of(inject_bytes(small_file()))
    loaded = [s.number for s in after.sections if s.header.sh_flags & SHF.ALLOC]
    other = [s for s in after.sections[1:] if s.number not in loaded]
    assert max(loaded) < min(s.number for s in other)
    assert max(s.p_offset + s.p_filesz for s in after.segments) <= min(s.header.sh_offset for s in other)
    assert other


@for_each("order", ORDERS)
def test_tail_layout(order: ByteOrder) -> None:
    before = elf_of(small_file(order, library=True, blocked=256))
    after = elf_of(inject_bytes(bytes(before.data)))
    plan = plan_injection(before, 28)
    assert plan.layout == "tail"
    assert not plan.moves
    assert not plan.patches
    assert plan.overwritten() == [(0, 64)]
    loads = [s for s in after.segments if s.p_type == PT.LOAD]
    assert after.header.e_phoff == loads[-1].p_offset
    assert len({s.p_vaddr - s.p_offset for s in (loads[0], loads[-1])}) == 1
    assert [s.p_vaddr for s in loads] == sorted(s.p_vaddr for s in loads)
    assert section_named(after, ".sframegen.phdrs").header.sh_addr == loads[-1].p_vaddr
    plan = plan_injection(elf_of(with_segment(bytes(before.data), 4, p_type=PT.PHDR)), 28)
    (table,) = [s for s in plan.segments if s.p_type == PT.PHDR]
    assert (table.p_offset, table.p_filesz) == (plan.table_offset, plan.table_size)


def test_the_tail_lies_behind_all_that_the_file_has() -> None:
    """Also where its addresses are higher than its offsets, and more of the file is in use than what it loads."""
    image = read_image(elf_of(small_file(library=True, blocked=256)))
    bias, room = 0x400000, align_up(image.end_address, image.page) + image.page
    moved = [load._replace(p_vaddr=load.p_vaddr + bias) for load in image.loads]
    section = layout.draft_tail_layout(
        image._replace(loads=moved, end_address=image.end_address + bias, insertion_offset=room), 28
    ).section
    assert (section.sh_offset, section.sh_addr) == (room, room + bias)


def test_the_hole_in_the_file_has_a_limit() -> None:
    """A library's .bss becomes bytes of the file."""
    data = small_file(library=True, blocked=256)
    number = max(n for n, s in enumerate(elf_of(data).segments) if s.p_type == PT.LOAD)
    start = elf_of(data).segments[number].p_vaddr
    large = elf_of(with_segment(data, number, p_memsz=(64 << 20) - start))
    plan = plan_injection(large, 28)
    hole = plan.section_offset - read_image(large).insertion_offset
    assert (64 << 20) - 0x1000 < hole < 64 << 20
    with pytest.raises(RefusedError, match="at the end of the file"):
        plan_injection(elf_of(with_segment(data, number, p_memsz=(64 << 20) - start + 1)), 28)


def test_the_first_segment_grows_only_where_its_last_page_is_free() -> None:
    """Not over bytes that are zeros in memory only, past its page, or where another segment has bytes of the file or addresses."""
    image = read_image(elf_of(small_file()))
    load, *others = image.loads
    end = load.p_offset + load.p_filesz
    assert load is image.table_load

    def may_reach(place: int, load: Phdr, *others: Phdr) -> bool:
        return can_extend_segment(image._replace(table_load=load, loads=[load, *others]), place)

    assert may_reach(end, load, *others)
    assert may_reach(0x1000, load)
    assert not may_reach(0x1001, load)
    zeros = load._replace(p_memsz=load.p_memsz + 1)
    assert may_reach(end, zeros)
    assert not may_reach(end + 1, zeros)
    same_bytes = others[0]._replace(p_offset=end, p_filesz=8)
    assert not may_reach(end + 1, load, same_bytes)
    assert may_reach(end + 1, load, same_bytes._replace(p_offset=end + 1))
    assert may_reach(end + 1, load, others[0]._replace(p_vaddr=0x1000))
    assert not may_reach(end + 1, load, others[0]._replace(p_vaddr=0xFFF))


def test_an_unused_header_gives_its_slot() -> None:
    data = small_file()
    number = [s.p_type for s in elf_of(data).segments].index(PT.NOTE)
    plan = plan_injection(elf_of(with_segment(data, number, p_type=0)), 28)
    assert len(plan.segments) == len(elf_of(data).segments) + 1
    assert [s.p_type for s in plan.dropped_segments] == [0]


def test_the_old_section_headers_may_be_in_the_way() -> None:
    """Go's linker puts them right after the program headers."""
    data = bytearray(small_file(library=True, blocked=1024))
    elf = elf_of(bytes(data))
    start = 64 + elf.phnum * PHDR_SIZE
    table = bytearray(data[elf.header.e_shoff :])
    table[64 + 4 : 64 + 8] = bytes(4)  # SHT_NULL in place of .init
    data[start : start + 1024] = table + bytes(1024 - len(table))
    end = max(s.header.sh_offset + s.header.sh_size for s in elf.sections if s.header.sh_type != SHT.NOBITS)
    original = with_header(bytes(data), e_shoff=start)[:end]
    changed = inject_bytes(original)
    plan = plan_injection(elf_of(original), 28)
    assert plan.layout == "front"
    assert not plan.moves
    assert [s.name for s in elf_of(changed).sections if s.name != ".sframe"] == [s.name for s in elf_of(original).sections]
    assert restored(changed) == original


@for_each(("filler", "layout"), [(b"\0", "front"), (b"X", "front"), (b"\xcc", "tail")])
def test_padding_alone_may_be_written_over(filler: bytes, layout: str) -> None:
    """However long it is, in a file with section headers. patchelf leaves X where something was."""
    data = small_file(library=True, blocked=256)
    at = section_named(elf_of(data), ".init").header.sh_offset
    without_init = with_section(data[:at] + filler * 256 + data[at + 256 :], ".init", sh_type=SHT.NULL)
    plan = plan_injection(elf_of(without_init), 28)
    assert (plan.layout, plan.moves) == (layout, ())


REFUSALS = {
    "has an .sframe section already": inject_bytes(small_file()),
    "not a linked program or library": with_header(small_file(), e_type=1),
    "has no PT_LOAD": with_header(small_file(), e_phnum=1),
    "reach past the end of the file": with_segment(small_file(), 3, p_filesz=0x5000, p_memsz=0x5000),
    "has 1,168 program headers": with_header(small_file() + bytes(1168 * PHDR_SIZE), e_phnum=1168),
    "has no table of section names": with_header(small_file(), e_shstrndx=0),
    "a dynamic loader": small_file(library=True).replace(struct.pack("<QQ", 1, 1), struct.pack("<QQ", 14, 1)),
}


@for_each("reason", REFUSALS)
def test_refusals(reason: str) -> None:
    with pytest.raises(SframegenError, match=reason.replace(".", r"\.")) as error:
        plan_injection(elf_of(REFUSALS[reason]), 28)
    assert str(error.value).startswith("file: ")
    assert "\n" not in str(error.value)


@for_each("library", [False, True])
def test_the_last_new_address_is_within_the_limit(library: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    elf = elf_of(small_file(library=library, blocked=256 * library))
    module = layout if library else front_layout
    plan = plan_injection(elf, 28)
    end = max(s.p_vaddr + s.p_memsz for s in plan.new_segments)
    monkeypatch.setattr(module, "MAX_ADDRESS", end)
    assert plan_injection(elf, 28) == plan
    monkeypatch.setattr(module, "MAX_ADDRESS", end - 1)
    with pytest.raises(RefusedError, match="no addresses are left" if not library else "no room"):
        plan_injection(elf, 28)


def test_without_section_headers_a_piece_ends_where_the_next_named_place_is() -> None:
    data = small_file()
    elf = elf_of(data)
    ends = {name: named_section_extent(section) for name in (".hash", ".dynstr", ".dynsym") if (section := elf.section(name))}
    image = read_image(elf_of(without_sections(data)))
    assert image.table_load is not None
    found = {name: piece for piece in image.movable for name in piece.names}
    assert (found["DT_HASH"].start, found["DT_HASH"].end) == (ends[".hash"].start, ends[".dynstr"].start)
    assert (found["DT_STRTAB"].start, found["DT_STRTAB"].end) == (ends[".dynstr"].start, ends[".dynstr"].end)  # by DT_STRSZ
    assert (found["DT_SYMTAB"].start, found["DT_SYMTAB"].end) == (ends[".dynsym"].start, image.table_load.p_filesz)


@for_each(("place", "size"), [(0, 16), (15, 1), (16, 0), (-1, 0)])
def test_a_tag_names_a_piece_of_the_segment_that_holds_its_address(place: int, size: int) -> None:
    elf = elf_of(small_file())
    load = [s for s in elf.segments if s.p_type == PT.LOAD][1]
    assert load.p_filesz == 16
    found = dynamic_tag_ranges(elf, {DT.HASH: [load.p_vaddr + place]})
    assert found == ([Extent(load.p_offset + place, load.p_offset + 16, ("DT_HASH",), 8)] if size else [])


@for_each(("count", "last"), [(SHN.LORESERVE - 2, False), (SHN.LORESERVE - 1, True)])
def test_numbers_of_sections_stay_where_they_would_need_more_than_the_header_has(count: int, last: bool) -> None:
    data = with_many_sections(small_file(), count)
    assert (plan_injection(elf_of(data), 28).added == (count,)) is last
    after = elf_of(inject_bytes(data))
    assert len(after.sections) == after.shnum == count + 1
    assert after.header.e_shnum == (0 if last else count + 1)
    assert after.sections[after.shstrndx].name == ".shstrtab"


@for_each(
    ("gaps", "start", "sound"),
    [
        ([], 100, True),
        ([(0, 4), (99, 6)], 110, True),
        ([(0, 4), (99, 6)], 109, False),  # no room for the original
        ([(99, 6), (0, 4)], 110, False),
        ([(5, 1), (5, 1)], 110, False),
        ([(5, 0)], 110, False),
        ([(100, 4)], 110, False),
        ([(0, 1), (1, 1), (2, 1)], 110, False),  # more than any plan has
    ],
)
def test_gaps_of_a_record_are_within_the_original(gaps: list[tuple[int, int]], start: int, sound: bool) -> None:
    assert undo_record.are_valid_gaps([Gap(*gap) for gap in gaps], 100, start) is sound


@for_each(
    ("owner", "kind", "moves"),
    [
        ("GNU", 1, True),  # ABI tag
        ("GNU", 3, True),  # build-id
        ("GNU", 5, True),  # properties
        ("GNU", 6, False),
        ("Go", 4, True),  # build-id
        ("FDO", 0xCAFE1A7E, True),  # package
        ("FDO", 0x407C0C0A, True),  # dlopen
        ("FDO", 3, False),
        ("Android", 1, True),
        ("GNU", 0x4F464E49, False),  # Crashpad's holds the distance from itself to something else
    ],
)
def test_only_notes_that_are_found_by_their_headers_move(owner: str, kind: int, moves: bool, compile_c: Compiler) -> None:
    size = (len(owner) // 4 + 1) * 4
    source = f"""
        __asm__(".section .note.mine, \\"a\\", @note\\n .balign 4\\n .long {size}, 8, {kind}\\n"
                ".asciz \\"{owner}\\"\\n .balign 4\\n .quad 1\\n .previous");
        int main(void) {{ return 0; }}
    """
    elf = open_elf(compile_c(source, "-Wl,--build-id=none"))
    assert may_move(elf, section_named(elf, ".note.mine"), {}) is moves


@for_each(("changed", "moves"), [({}, True), ({"sh_size": 0}, False), ({"sh_addralign": 3}, False)])
def test_what_has_no_bytes_or_no_alignment_stays(changed: dict[str, int], moves: bool) -> None:
    elf = elf_of(small_file())
    section = section_named(elf, ".hash")
    section = section._replace(header=section.header._replace(**changed))
    assert may_move(elf, section, {DT.HASH: [section.header.sh_addr]}) is moves


# Types of sections, and the dynamic tags that name them: hashes, symbols, strings, versions.
TYPES = (5, 0x6FFFFFF6, 11, 3, 0x6FFFFFFF, 0x6FFFFFFD, 0x6FFFFFFE)
TAGS = (4, 0x6FFFFEF5, 6, 5, 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFE)


@for_each(("kind", "tag"), zip(TYPES, TAGS, strict=True))
def test_a_section_that_its_tag_names_may_move(kind: int, tag: int) -> None:
    elf = elf_of(small_file())
    section = section_named(elf, ".hash")
    for flags, address, moves in ((2, 0, True), (2, 1, False), (0, 0, False), (3, 0, False), (6, 0, False)):
        other = section._replace(header=section.header._replace(sh_type=kind, sh_flags=flags))
        assert may_move(elf, other, {tag: [section.header.sh_addr + address]}) is moves


@for_each("unloaded", [False, True])
def test_a_new_section_s_header_says_no_more_than_where_it_is(unloaded: bool) -> None:
    header = section_named(elf_of(inject_bytes(small_file(), unloaded=unloaded)), ".sframe").header
    flags = 0 if unloaded else SHF.ALLOC
    assert header._replace(sh_name=0, sh_addr=0, sh_offset=0) == Shdr(0, SHT.GNU_SFRAME, flags, 0, 0, 28, 0, 0, 8, 0)
    assert (header.sh_addr > 0, header.sh_offset % 8) == (not unloaded, 0)
    check_size(elf_of(small_file()), 1 << 40)
    for size in (0, -1, (1 << 40) + 1, 1 << 50):
        with pytest.raises(FormatError, match=f"a section of {size} bytes"):
            check_size(elf_of(small_file()), size)
        with pytest.raises(FormatError, match="a section of "):
            plan_injection(elf_of(small_file()), size)
