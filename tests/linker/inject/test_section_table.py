"""Section headers after new ones came between them: numbers, names, places, and the symbols that name them."""

from __future__ import annotations

import struct

import pytest

from linker.inject import section_table
from linker.inject.gaps import Gap
from linker.inject.layout import LayoutDraft, Move
from linker.inject.section_table import Patch, make_section_table, move_header, renumber_header, symbol_value_patches
from sframegen.base.errors import FormatError
from sframegen.elf.records import SHF, SHT, Shdr
from tests.linker.inject.test_image import with_section
from tests.linker.inject.test_plan import elf_of
from tests.support.inputs.linker_inputs import section_named, small_file

SFRAME = Shdr(0, SHT.GNU_SFRAME, SHF.ALLOC, 0x9000, 0x4000, 28, 0, 0, 8, 0)
COVER = Shdr(0, SHT.PROGBITS, SHF.ALLOC, 0x8000, 0x3000, 8, 0, 0, 8, 0)
END = 0x5000
DRAFT = LayoutDraft("front", (), 64, [], [], SFRAME, END, [], [], [(".cover", COVER)])
NOTE = Move((".note",), 0x20, 0x200, 0x800, 0x1200, 0x9800)


def with_symbol(data: bytes, section: int, value: int) -> bytes:
    """The first symbol of .symtab is of that section."""
    table = section_named(elf_of(data), ".symtab")
    at = table.header.sh_offset + 24
    return data[: at + 6] + struct.pack("<HQ", section, value) + data[at + 16 :]


def test_new_sections_follow_the_last_that_is_loaded() -> None:
    elf = elf_of(small_file())
    [place] = [section.number + 1 for section in elf.sections if section.name == ".dynamic"]
    table = make_section_table(elf, DRAFT)
    assert table.added == (place, place + 1)
    assert [section.number for section in table.sections] == list(range(elf.shnum + 2))
    names = [section.name for section in elf.sections]
    assert [section.name for section in table.sections] == [*names[:place], ".cover", ".sframe", *names[place:]]
    size = elf.sections[elf.shstrndx].header.sh_size
    assert (table.new_names, table.names_size) == (".cover\0.sframe\0", size + 15)
    assert [table.sections[number].header.sh_name for number in table.added] == [size, size + 7]
    strings = table.sections[table.names_number]
    assert (strings.name, strings.header.sh_offset, strings.header.sh_size) == (".shstrtab", END, size + 15)
    for old in elf.sections[1:]:
        [new] = [section for section in table.sections if section.name == old.name]
        linked = table.sections[new.header.sh_link].name
        assert linked == names[old.header.sh_link]


@pytest.mark.parametrize("kind", ["not loaded", "group"])
def test_new_sections_come_last_where_numbers_have_to_stay(kind: str) -> None:
    """No one can see that a number in a group is one."""
    data = small_file()
    elf = elf_of(with_section(data, ".strtab", sh_type=SHT.GROUP) if kind == "group" else data)
    section = SFRAME if kind == "group" else SFRAME._replace(sh_flags=0)
    table = make_section_table(elf, DRAFT._replace(section=section))
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
    """Up to the section's end."""
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
