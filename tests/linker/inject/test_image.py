"""What an injection takes from a file: room for new bytes, what is refused, program headers and section headers."""

from __future__ import annotations

import struct

import pytest

from linker.files.copying import FilePart
from linker.inject import before_layout, section_table
from linker.inject.before_layout import can_insert_pages, draft_before_layout
from linker.inject.front_layout import choose_pieces_to_move, end_of_cleared_bytes, is_unused
from linker.inject.gaps import Gap, is_grown, shift_segment, split_at_gaps
from linker.inject.image import (
    MAX_PROGRAM_HEADERS,
    Image,
    check_header,
    check_sections,
    describe_load_fault,
    find_build_id,
    find_insertion_offset,
    read_image,
)
from linker.inject.layout import LayoutDraft, Move, NoRoomError, add_gap_for_new_bytes
from linker.inject.movable import find_unexplained_ranges, is_valid_align
from linker.inject.section_table import Patch, make_section_table, move_header, renumber_header, symbol_value_patches
from sframegen.base.errors import FormatError, SframegenError
from sframegen.elf.file import ElfFile
from sframegen.elf.ranges import Extent
from sframegen.elf.records import EHDR_SIZE, ET, PHDR_SIZE, PT, SHF, SHT, Phdr, Shdr
from tests.support.inputs.linker_inputs import (
    Writer,
    elf_of,
    section_named,
    small_file,
    with_header,
    with_section,
    with_segment,
    without_sections,
)
from tests.support.loops import for_each

FIRST_PAGE = 0x1000
LOAD = Phdr(PT.LOAD, 4, 0, 0x1000, 0x1000, 0x100, 0x100, 0x1000)


@for_each(
    ("fields", "end", "fault"),
    [
        ({}, 0x1000, ""),
        ({}, 0x1001, "is out of order"),
        ({"p_align": 0}, 0, ""),
        ({"p_align": 3}, 0, "is aligned to 0x3"),
        ({"p_align": 1 << 40}, 0, ""),
        ({"p_align": 1 << 41}, 0, "is aligned"),
        ({"p_filesz": 0x101}, 0, "has more bytes in the file than in memory"),
        ({"p_vaddr": (1 << 63) - 0x100}, 0, ""),
        ({"p_vaddr": (1 << 63) - 0xFF}, 0, "ends above 0x8000000000000000"),
    ],
)
def test_faults_of_a_load(fields: dict[str, int], end: int, fault: str) -> None:
    found = describe_load_fault(LOAD._replace(**fields), end)
    assert found.startswith(fault)
    assert bool(found) == bool(fault)


def test_as_many_program_headers_as_kernels_read() -> None:
    elf = elf_of(small_file())
    room = MAX_PROGRAM_HEADERS - elf.phnum
    assert MAX_PROGRAM_HEADERS == 1170  # 64 KiB
    check_header(elf, room)
    with pytest.raises(SframegenError, match="program headers"):
        check_header(elf, room + 1)
    check_header(elf_of(with_header(small_file(), e_phoff=EHDR_SIZE)), 0)
    with pytest.raises(FormatError, match="has no program header table after its ELF header"):
        check_header(elf_of(with_header(small_file(), e_phoff=EHDR_SIZE - 1)), 0)


def test_no_section_has_bytes_of_the_elf_header() -> None:
    data = small_file()
    check_sections(elf_of(with_section(data, ".text", sh_offset=EHDR_SIZE)))
    check_sections(elf_of(with_section(data, ".text", sh_offset=EHDR_SIZE - 1, sh_size=0)))
    check_sections(elf_of(with_section(data, ".text", sh_offset=EHDR_SIZE - 1, sh_type=SHT.NOBITS)))
    with pytest.raises(FormatError, match=r"overlaps the ELF header"):
        check_sections(elf_of(with_section(data, ".text", sh_offset=EHDR_SIZE - 1)))
    end = len(data) - 16
    check_sections(elf_of(with_section(data, ".text", sh_offset=end)))
    with pytest.raises(FormatError, match=r"\.text"):
        check_sections(elf_of(with_section(data, ".text", sh_offset=end + 1)))
    with pytest.raises(FormatError, match="has no table of section names that could grow"):
        check_sections(elf_of(with_section(data, ".shstrtab", sh_flags=SHF.ALLOC)))


def test_new_bytes_have_room_after_what_segments_have() -> None:
    """At the file's end if that would cut a section, or if a loaded one follows; after program headers there, too."""
    data = small_file()
    elf = elf_of(data)
    [end] = {s.header.sh_offset + s.header.sh_size for s in elf.sections if s.name == ".dynamic"}
    assert find_insertion_offset(elf) == end < len(data)
    for fields, room in (
        ({"sh_offset": end, "sh_size": 1}, end),
        ({"sh_offset": end - 1, "sh_size": 1}, end),
        ({"sh_offset": end - 1, "sh_size": 2}, len(data)),
        ({"sh_offset": end, "sh_size": 1, "sh_flags": SHF.ALLOC}, len(data)),
        ({"sh_offset": end, "sh_size": 0, "sh_flags": SHF.ALLOC}, end),
        ({"sh_offset": end - 1, "sh_size": 2, "sh_type": SHT.NOBITS}, end),
    ):
        assert find_insertion_offset(elf_of(with_section(data, ".strtab", **fields))) == room, fields
    bare = without_sections(data)
    assert find_insertion_offset(elf_of(bare)) == len(bare)
    assert find_insertion_offset(elf_of(with_header(bare, e_phoff=len(bare) - elf.phnum * PHDR_SIZE))) == len(bare)
    table = bytes(bare[elf.header.e_phoff :][: elf.phnum * PHDR_SIZE])
    assert find_insertion_offset(elf_of(with_header(bare + table + bytes(8), e_phoff=len(bare)))) == len(bare) + len(table)


@for_each(("place", "found"), [(FIRST_PAGE - 36, True), (FIRST_PAGE - 35, False), (FIRST_PAGE - 32, False)])
def test_a_build_id_is_in_the_first_page_or_not(place: int, found: bool) -> None:
    """To its last byte: 16 of header and name, 20 of id."""
    writer = Writer("little", 1)
    writer.data.extend(bytes(place - len(writer.data)))
    content = struct.pack("<III", 4, 20, 3) + b"GNU\0" + bytes(20)
    note = writer.put(".note.gnu.build-id", SHT.NOTE, 2, content, 1)
    segment = Phdr(PT.NOTE, 4, note.sh_offset, 0, 0, note.sh_size, note.sh_size, 4)
    elf = ElfFile(memoryview(writer.finish([segment])))
    assert (find_build_id(elf) or [None])[0] == (place if found else None)


def test_addresses_follow_all_loads_and_offsets_keep_the_largest_alignment() -> None:
    data = small_file()
    image = read_image(elf_of(data))
    last = image.loads[-1]
    assert image.end_address == last.p_vaddr + last.p_memsz
    assert (image.page, image.align_after) == (0x1000, 8)
    assert read_image(elf_of(with_segment(data, 3, p_align=0x4000))).page == 0x4000
    for align, after in ((16, 16), (FIRST_PAGE, FIRST_PAGE), (24, 8), (2 * FIRST_PAGE, 8)):
        assert read_image(elf_of(with_section(data, ".symtab", sh_addralign=align))).align_after == after
    assert read_image(elf_of(with_section(data, ".text", sh_addralign=64))).align_after == 8


def test_what_is_not_loaded_makes_way() -> None:
    image = read_image(elf_of(small_file()))
    size, room = len(image.elf.data), image.insertion_offset
    assert add_gap_for_new_bytes(image, room + 1) == (((room, 8),), size + 8)
    assert add_gap_for_new_bytes(image, room + 8) == (((room, 8),), size + 8)
    assert add_gap_for_new_bytes(image, room + 9) == (((room, 16),), size + 16)
    assert add_gap_for_new_bytes(image._replace(align_after=32), room + 9) == (((room, 32),), size + 32)
    assert add_gap_for_new_bytes(image._replace(insertion_offset=size), size + 9) == ((), size + 9)


def test_alignments_are_powers_of_2_up_to_a_page() -> None:
    valid = [align for align in range(2 * FIRST_PAGE + 1) if is_valid_align(align)]
    assert valid == [0, *(1 << bit for bit in range(13))]


def test_only_what_the_headers_segment_holds_may_move() -> None:
    data = small_file()
    elf = elf_of(data)
    hashes = section_named(elf, ".hash")
    end = hashes.header.sh_offset + hashes.header.sh_size
    for size, moves in ((end, True), (end - 1, False)):
        image = read_image(elf_of(with_segment(data, 2, p_filesz=size, p_memsz=size)))
        names = {name for piece in image.movable for name in piece.names}
        assert ((".hash" in names), ".dynstr" in names) == (moves, False)
        blocked = {name for block in image.fixed for name in block.names}
        assert {".dynstr"} <= blocked
        assert (".hash" in blocked) is not moves


def test_the_segment_with_the_headers_holds_all_of_them() -> None:
    data = small_file()
    table = read_image(elf_of(data)).table
    for size, holds in ((table.end, True), (table.end - 1, False)):
        image = read_image(elf_of(with_segment(data, 2, p_filesz=size)))
        assert image.table_load == (image.loads[0] if holds else None)
    for offset, holds in ((table.start, True), (table.start + 1, False)):
        image = read_image(elf_of(with_segment(data, 2, p_offset=offset)))
        assert image.table_load == (image.loads[0] if holds else None)


# -- pages before the first segment


def at_address(address: int) -> Image:
    """The image of a program that is linked there: its first segment has the headers."""
    image = read_image(elf_of(with_header(small_file(), e_type=ET.EXEC)))

    def linked(segments: list[Phdr]) -> list[Phdr]:
        return [s._replace(p_vaddr=s.p_vaddr + address, p_paddr=s.p_paddr + address) for s in segments]

    loads = linked(image.loads)
    end = image.end_address + address
    return image._replace(loads=loads, table_load=loads[0], segments=linked(image.segments), end_address=end)


def test_pages_go_before_programs_that_begin_with_their_headers() -> None:
    image = at_address(0x40_0000)
    first = image.loads[0]
    assert can_insert_pages(image)
    header = image.elf.header
    for other in (
        image._replace(elf=elf_of(with_header(small_file(), e_type=ET.DYN))),
        image._replace(elf=elf_of(with_header(bytes(image.elf.data), e_phoff=header.e_phoff + 8, e_phnum=1))),
        image._replace(table_load=image.loads[1]),
        image._replace(table_load=first._replace(p_offset=8), loads=[first._replace(p_offset=8)]),
        at_address(0x40_0800),
    ):
        assert not can_insert_pages(other)
    for page, possible in ((0x1000, True), (0x2000, False), (0x10000, False)):
        assert can_insert_pages(at_address(0x40_1000)._replace(page=page)) is possible
    assert can_insert_pages(at_address(0x41_0000)._replace(page=0x20_0000))


def test_pages_begin_where_kernels_map_them() -> None:
    draft = draft_before_layout(at_address(0x2_0000), 28)
    [first, *_] = [s for s in draft.segments if s.p_type == PT.LOAD]
    assert (first.p_vaddr, first.p_offset) == (0x1_0000, 0)
    with pytest.raises(NoRoomError, match="too near to address 0"):
        draft_before_layout(at_address(0x2_0000 - 1), 28)


def test_the_build_id_is_in_the_first_page_or_this_layout_is_not_taken() -> None:
    """Sixty-five more program headers would push the note out; a note that stays in the same section would hold it back."""
    image = at_address(0x40_0000)
    with pytest.raises(NoRoomError, match="the build-id note would leave the first page of the file"):
        draft_before_layout(image._replace(segments=[*image.segments, *[image.segments[-1]] * 65]), 28)
    elf = elf_of(bytes(image.elf.data).replace(b"GNU\0", b"GNUs", 1))
    with pytest.raises(NoRoomError, match="the build-id note would leave the first page of the file"):
        draft_before_layout(image._replace(elf=elf, movable=[]), 28)


def test_the_last_new_address_after_the_pages_is_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    image = at_address(0x40_0000)
    draft = draft_before_layout(image, 28)
    end = draft.section.sh_addr + 28
    monkeypatch.setattr(before_layout, "MAX_ADDRESS", end)
    assert draft_before_layout(image, 28) == draft
    monkeypatch.setattr(before_layout, "MAX_ADDRESS", end - 1)
    with pytest.raises(NoRoomError, match="no addresses are left after it"):
        draft_before_layout(image, 28)


# -- the front layout


def near(pieces: list[Extent], blocks: list[Extent] | None = None, build_id: int | None = None) -> Image:
    image = read_image(elf_of(small_file()))
    load = LOAD._replace(p_offset=0, p_filesz=0x3000, p_memsz=0x3000)
    table = Extent(0x40, 0x100)
    note = None if build_id is None else Extent(build_id, build_id + ID.size)
    return image._replace(table=table, table_load=load, loads=[load], movable=pieces, fixed=blocks or [], build_id=note)


ID = Extent(0x100, 0x124, ("id",), 4)
HASH = Extent(0x128, 0x200, ("hash",), 8)
NAMES = Extent(0x200, 0x220, ("names",), 1)


def test_pieces_in_the_way_move() -> None:
    image = near([ID, HASH, NAMES])
    assert choose_pieces_to_move(image, 0x100) == ([], [])
    assert choose_pieces_to_move(image, 0x101) == ([ID], [])
    assert choose_pieces_to_move(image, 0x128) == ([ID], [])
    assert choose_pieces_to_move(image, 0x129) == ([ID, HASH], [])
    block = Extent(0x180, 0x190, (".init",))
    assert choose_pieces_to_move(near([], [block]), 0x180) == ([], [])
    for blocked, why in ((block, r"\.init cannot move"), (block._replace(names=()), "a segment cannot move")):
        with pytest.raises(NoRoomError, match=why):
            choose_pieces_to_move(near([], [blocked]), 0x181)


def test_the_build_id_takes_the_place_that_moves_least() -> None:
    image = near([ID, HASH, NAMES], build_id=0x100)
    assert choose_pieces_to_move(image, 0x110) == ([], [(ID, 0x220)])  # after all others
    for end, moved in ((0x224, ([NAMES], [(ID, 0x200)])), (0x223, ([HASH], [(ID, 0x110)]))):
        assert choose_pieces_to_move(near([ID, HASH, NAMES], [Extent(end, FIRST_PAGE, ("code",))], 0x100), 0x110) == moved
    assert choose_pieces_to_move(near([ID, HASH], [Extent(0x200, FIRST_PAGE, ("code",))], 0x100), 0x110) == ([HASH], [(ID, 0x110)])
    with pytest.raises(NoRoomError, match="the build-id note would leave the first page"):
        choose_pieces_to_move(near([ID], [Extent(0x140, FIRST_PAGE, ("code",))], 0x100), 0x120)
    assert choose_pieces_to_move(near([ID, HASH], build_id=0x128), 0x120)[0] == [ID]  # it is not in the way
    for end, place in ((0x301, 0x304), (FIRST_PAGE - 0x24, FIRST_PAGE - 0x24)):  # aligned, and to the page's end
        assert choose_pieces_to_move(near([ID], [Extent(0x120, end)], 0x100), 0x110) == ([], [(ID, place)])
    with pytest.raises(NoRoomError, match="the build-id note would leave the first page"):
        choose_pieces_to_move(near([ID], [Extent(0x120, FIRST_PAGE - 0x20)], 0x100), 0x110)


def test_remains_of_moved_pieces_are_cleared_up_to_the_page_s_end() -> None:
    assert end_of_cleared_bytes(near([ID, HASH, NAMES]), 0x110) == 0x124
    assert end_of_cleared_bytes(near([ID, HASH, NAMES]), 0x124) == 0x124
    assert end_of_cleared_bytes(near([ID, HASH, NAMES]), 0x126) == 0x126
    assert end_of_cleared_bytes(near([Extent(0x100, 0x2000)]), 0x110) == FIRST_PAGE


def test_headers_that_nobody_reads() -> None:
    note = LOAD._replace(p_type=PT.NOTE)
    assert is_unused(LOAD._replace(p_type=0), [])
    assert is_unused(note, [note, note._replace(p_type=PT.GNU_PROPERTY)])
    assert not is_unused(note, [note, note._replace(p_type=PT.GNU_PROPERTY, p_offset=1)])
    assert not is_unused(LOAD, [LOAD, LOAD._replace(p_type=PT.GNU_PROPERTY)])


def test_padding_is_short_and_filled() -> None:
    """What linkers and patchelf leave; other bytes may be read by someone."""
    writer = Writer("little", 0)
    content = bytearray(64)
    content[:15], content[20], content[31:40] = b"X" * 15, 1, b"X" * 9
    offset = writer.put(".data", SHT.PROGBITS, 2, bytes(content)).sh_offset
    elf = ElfFile(memoryview(writer.finish([])))
    known = [Extent(0, offset), Extent(offset + 15, offset + 16), Extent(offset + 30, offset + 31), Extent(offset + 47, 1 << 63)]

    def holes(padding: int) -> list[tuple[int, int]]:
        return [(item.start - offset, item.end - offset) for item in find_unexplained_ranges(elf, known, offset, 1 << 63, padding)]

    assert holes(15) == [(16, 30), (31, 47)]
    assert holes(16) == [(16, 30)]
    assert holes(14) == [(0, 15), (16, 30), (31, 47)]


SFRAME = Shdr(0, SHT.GNU_SFRAME, SHF.ALLOC, 0x9000, 0x4000, 28, 0, 0, 8, 0)
COVER = Shdr(0, SHT.PROGBITS, SHF.ALLOC, 0x8000, 0x3000, 8, 0, 0, 8, 0)
END = 0x5000
DRAFT = LayoutDraft("front", (), 64, [], [], SFRAME, END, [], [], [(".cover", COVER)])
NOTE = Move((".note",), 0x20, 0x200, 0x800, 0x1200, 0x9800)


def with_symbol(data: bytes, section: int, value: int) -> bytes:
    at = section_named(elf_of(data), ".symtab").header.sh_offset + 24
    return data[: at + 6] + struct.pack("<HQ", section, value) + data[at + 16 :]


def test_new_sections_come_last_where_numbers_have_to_stay() -> None:
    """No one can see that a number in a group is one."""
    elf = elf_of(with_section(small_file(), ".strtab", sh_type=SHT.GROUP))
    table = make_section_table(elf, DRAFT)
    assert table.added == (elf.shnum, elf.shnum + 1)
    assert table.patches == []


def test_symbols_of_later_sections_get_their_new_numbers() -> None:
    data = small_file()
    elf = elf_of(data)
    [place] = [section.number + 1 for section in elf.sections if section.name == ".dynamic"]
    symbols = section_named(elf, ".symtab")
    for number in (place - 1, place, elf.shnum - 1):
        table = make_section_table(elf_of(with_symbol(data, number, 0)), DRAFT)
        patch = Patch("section of .symtab[1]", symbols.header.sh_offset + 24 + 6, number, number + 2, 2)
        assert table.patches == ([patch] if number >= place else [])


@pytest.mark.parametrize(
    ("kind", "flags", "info"), [(SHT.REL, 0, 13), (SHT.RELA, 0, 13), (1, SHF.INFO_LINK, 13), (1, 0, 3), (2, 2, 3)]
)
def test_numbers_in_headers_follow(kind: int, flags: int, info: int) -> None:
    """sh_info is a number of other things in most sections."""
    header = Shdr(0, kind, flags, 0, 0, 0, 4, 3, 1, 0)
    assert renumber_header(header, {3: 13, 4: 14}) == header._replace(sh_link=14, sh_info=info)
    assert renumber_header(header, {}) == header


@pytest.mark.parametrize(
    ("fields", "moved"),
    [
        ({}, {"sh_addr": 0x9800, "sh_offset": 0x800}),
        ({"sh_offset": 0x210, "sh_addr": 0x1210, "sh_size": 0x10}, {"sh_addr": 0x9810, "sh_offset": 0x810}),
        ({"sh_size": 0x21}, {"sh_offset": 0x238}),
        ({"sh_flags": 0}, {"sh_offset": 0x238}),
        ({"sh_offset": 0x1FF, "sh_flags": 0}, {"sh_offset": 0x20F}),
        ({"sh_type": SHT.NULL}, {"sh_addr": 0x9800, "sh_offset": 0x800}),
        ({"sh_type": SHT.NULL, "sh_flags": 0}, {}),
        ({"sh_type": SHT.NOBITS}, {"sh_offset": 0x210}),
        ({"sh_size": 0}, {"sh_offset": 0x210}),
        ({"sh_size": 0, "sh_flags": 0}, {"sh_offset": 0x238}),
    ],
)
def test_sections_follow_their_bytes(fields: dict[str, int], moved: dict[str, int]) -> None:
    header = Shdr(0, SHT.PROGBITS, SHF.ALLOC, 0x1200, 0x200, 0x20, 0, 0, 4, 0)._replace(**fields)
    draft = DRAFT._replace(gaps=(Gap(0, 0x10), Gap(0x200, 0x28)), moves=[NOTE])
    assert move_header(header, draft) == header._replace(**moved)


def test_symbols_of_moved_sections_follow() -> None:
    data = small_file()
    elf = elf_of(data)
    note, symbols = section_named(elf, ".note.gnu.build-id"), section_named(elf, ".symtab")
    address, size = note.header.sh_addr, note.header.sh_size
    move = Move(("note",), size, note.header.sh_offset, 0x4800, address, 0x9800)
    draft = DRAFT._replace(gaps=(Gap(symbols.header.sh_offset, 0x100),), moves=[move])
    at = symbols.header.sh_offset + 0x100 + 24 + 8
    for value, new in ((address, 0x9800), (address + size, 0x9800 + size), (address + size + 1, None), (address - 1, None)):
        patches = [p for p in symbol_value_patches(elf_of(with_symbol(data, note.number, value)), draft) if ".symtab" in p.name]
        assert patches == ([Patch(".symtab[1]", at, value, new)] if new else [])


def test_only_so_many_symbols_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where more would move, nothing does; where more would have another number, the new sections come last."""
    data = small_file()
    elf = elf_of(data)
    [note] = [section for section in elf.sections if section.name == ".note.gnu.build-id"]
    move = Move(("note",), note.header.sh_size, note.header.sh_offset, 0x4800, note.header.sh_addr, 0x9800)
    draft = DRAFT._replace(moves=[move])
    later = elf_of(with_symbol(data, elf.shnum - 1, 0))
    monkeypatch.setattr(section_table, "MAX_SYMBOLS", 1)
    assert len(list(symbol_value_patches(elf, draft))) == 1
    assert len(make_section_table(later, DRAFT).patches) == 1
    monkeypatch.setattr(section_table, "MAX_SYMBOLS", 0)
    with pytest.raises(FormatError, match="more than 0 symbols in metadata that would move"):
        list(symbol_value_patches(elf, draft))
    table = make_section_table(later, DRAFT)
    assert (table.patches, table.added) == ([], (elf.shnum, elf.shnum + 1))


# -- gaps

GAPS = (Gap(0, 0x1000), Gap(0x200, 0x30))
SEGMENT = Phdr(PT.LOAD, 4, 0x100, 0x40_0100, 0x40_0100, 0x80, 0x90, 0x1000)
FIRST = SEGMENT._replace(p_offset=0, p_vaddr=0x40_0000, p_paddr=0x40_0000)
GROWN = FIRST._replace(p_vaddr=0x3F_F000, p_paddr=0x3F_F000, p_filesz=0x1080, p_memsz=0x1090)


def test_a_segment_moves_with_its_bytes() -> None:
    """Without bytes in the file it moves only with everything."""
    assert split_at_gaps(GAPS, [FilePart(0x10, 0x180, 0x80)]) == [FilePart(0x10, 0x1180, 0x80)]
    assert shift_segment(GAPS, SEGMENT) == SEGMENT._replace(p_offset=0x1100)
    after = SEGMENT._replace(p_offset=0x200, p_vaddr=0x40_0200)
    assert shift_segment(GAPS, after) == after._replace(p_offset=0x1230, p_align=0x10)
    assert shift_segment(GAPS, after._replace(p_align=0x10)).p_align == 0x10
    assert shift_segment(GAPS, after._replace(p_align=0)).p_align == 0
    bss = after._replace(p_filesz=0)
    assert shift_segment(GAPS, bss) == bss._replace(p_offset=0x1200)
    assert shift_segment(GAPS, bss._replace(p_memsz=0)) == bss._replace(p_memsz=0)
    assert shift_segment(GAPS, SEGMENT._replace(p_memsz=0)) == SEGMENT._replace(p_memsz=0, p_offset=0x1100)


@for_each(
    ("old", "new", "gaps", "grown"),
    [
        (SEGMENT, SEGMENT._replace(p_filesz=0x107F, p_memsz=0x1080, p_align=0x10), (), True),
        (SEGMENT, SEGMENT._replace(p_filesz=0x1080, p_memsz=0x1080), (), False),
        (SEGMENT, SEGMENT._replace(p_filesz=0x7F), (), False),
        (SEGMENT, SEGMENT._replace(p_memsz=0x8F), (), False),
        (FIRST, GROWN, GAPS, True),
        (FIRST, GROWN._replace(p_filesz=0x107F), GAPS, False),
        (FIRST, GROWN._replace(p_memsz=0x108F), GAPS, False),
        (FIRST, GROWN._replace(p_vaddr=0x40_0000), GAPS, False),
        (FIRST, GROWN._replace(p_paddr=0x40_0000), GAPS, False),
        (FIRST._replace(p_paddr=0), GROWN._replace(p_paddr=(1 << 64) - 0x1000), GAPS, True),  # physical addresses wrap
    ],
)
def test_a_load_may_grow_in_its_last_page_and_begin_with_the_gap_before_it(
    old: Phdr, new: Phdr, gaps: tuple[Gap, ...], grown: bool
) -> None:
    assert is_grown(old, new, gaps) is grown
