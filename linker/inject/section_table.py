"""Makes the new section header table. New sections follow the last loaded one, as tools expect, so later ones are renumbered.

Symbols name their section by number (st_shndx), so those of renumbered sections are patched, as are the values of moved symbols.
"""

from __future__ import annotations

from linker.inject.gaps import shift_header
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.elf.file import ElfFile, Section
from sframegen.elf.records import ADDRESS_SPACE, SHF, SHN, SHT, SYM_SIZE, Shdr
from sframegen.elf.symbols import ST_SHNDX_OFFSET, ST_VALUE_OFFSET, SymbolTable, symbol_tables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from linker.inject.layout import LayoutDraft, Move

MAX_SYMBOLS = 1 << 16  # symbols that may be patched; real files have a handful


class Patch(NamedTuple):
    """A changed field in the new file: a dynamic tag's value, or a symbol's value or section number; `size` in bytes."""

    name: str
    offset: int
    old: int
    new: int
    size: int = 8


class NewTable(NamedTuple):
    """The new section header table, and changes elsewhere that follow from it."""

    sections: list[Section]
    added: tuple[int, ...]  # numbers of the new sections
    names_number: int  # number of the section with the section names
    names_size: int
    new_names: str  # appended to the section names
    patches: list[Patch]  # of symbols whose section has a new number


NO_TABLE = NewTable([], (), 0, 0, "", [])


def make_section_table(elf: ElfFile, draft: LayoutDraft) -> NewTable:
    """Return the new section header table. The section names go to the end of the file, followed by the table."""
    added = [*draft.covers, (".sframe", draft.section)]  # (name, header)
    name_offset = elf.sections[elf.shstrndx].header.sh_size
    new_names = "".join(f"{name}\0" for name, _ in added)
    first, patches = choose_first_number(elf, draft, len(added))
    numbers = {number: number + len(added) * (number >= first) for number in range(elf.shnum)}
    sections = [
        section._replace(number=numbers[section.number], header=renumber_header(move_header(section.header, draft), numbers))
        for section in elf.sections
    ]
    names = sections[elf.shstrndx]
    names_size = name_offset + len(new_names)
    sections[elf.shstrndx] = names._replace(header=names.header._replace(sh_offset=draft.end, sh_size=names_size))
    new = []
    for number, (name, header) in enumerate(added, first):
        new.append(Section(number, name, header._replace(sh_name=name_offset)))
        name_offset += len(name) + 1
    sections[first:first] = new
    if len(sections) >= SHN.LORESERVE:  # too many for the ELF header, which then holds 0
        sections[0] = sections[0]._replace(header=sections[0].header._replace(sh_size=len(sections)))
    return NewTable(sections, tuple(section.number for section in new), numbers[elf.shstrndx], names_size, new_names, patches)


def choose_first_number(elf: ElfFile, draft: LayoutDraft, count: int) -> tuple[int, list[Patch]]:
    """Return (number of the first of `count` new sections, patches of symbols whose section is renumbered).

    New sections come last if renumbering is not possible: with section groups, extended numbers, or too many symbols.
    """
    loaded = [section.number for section in elf.sections if section.header.sh_flags & SHF.ALLOC]
    first = loaded[-1] + 1 if loaded else elf.shnum
    if (
        not draft.section.sh_flags & SHF.ALLOC
        or elf.shnum + count >= SHN.LORESERVE
        or elf.header.e_shstrndx != elf.shstrndx
        or any(section.header.sh_type == SHT.GROUP for section in elf.sections)
    ):
        return elf.shnum, []
    patches = []
    for patch in section_number_patches(elf, draft, first, count):
        patches.append(patch)
        if len(patches) > MAX_SYMBOLS:
            return elf.shnum, []
    return first, patches


def section_number_patches(elf: ElfFile, draft: LayoutDraft, first: int, count: int) -> Iterator[Patch]:
    """Yield patches for symbols of sections numbered `first` and above, usually section symbols."""
    for table, new_offset in symbol_tables_with_offsets(elf, draft):
        for index in table.defined_in(range(first, elf.shnum)):
            number = table[index].st_shndx
            at = new_offset + index * SYM_SIZE + ST_SHNDX_OFFSET
            if number < SHN.LORESERVE:
                yield Patch(f"section of {table.section.name}[{index}]", at, number, number + count, 2)


def symbol_value_patches(elf: ElfFile, draft: LayoutDraft) -> Iterator[Patch]:
    """Yield patches for the values of symbols in moved sections, at their offsets in the new file."""
    moves = {section.number: move for section in elf.sections if (move := find_move(section.header, draft.moves)) is not None}
    count = 0
    for table, new_offset in symbol_tables_with_offsets(elf, draft) if moves else ():
        for index in table.defined_in(moves.keys()):
            symbol = table[index]
            number = table.section_of(index, symbol)
            if number not in moves:
                continue
            move, header = moves[number], elf.sections[number].header
            if not 0 <= symbol.st_value - header.sh_addr <= header.sh_size:
                continue  # GNU ld puts __ehdr_start into the first section, at an address outside it
            count += 1
            if count > MAX_SYMBOLS:
                raise elf.error(f"more than {MAX_SYMBOLS} symbols in metadata that would move", table.section.name)
            value = (symbol.st_value + move.to_address - move.from_address) % ADDRESS_SPACE
            at = new_offset + index * SYM_SIZE + ST_VALUE_OFFSET
            yield Patch(f"{table.section.name}[{index}]", at, symbol.st_value, value)


def symbol_tables_with_offsets(elf: ElfFile, draft: LayoutDraft) -> Iterator[tuple[SymbolTable, int]]:
    """Yield (symbol table, its offset in the new file) for each symbol table."""
    for section in symbol_tables(elf):
        if section.header.sh_entsize == SYM_SIZE:
            yield SymbolTable(elf, section, elf.stored_contents(section)), move_header(section.header, draft).sh_offset


def move_header(header: Shdr, draft: LayoutDraft) -> Shdr:
    """Return a section's header with its new address and offset."""
    item = find_move(header, draft.moves)
    if item is not None:
        return header._replace(
            sh_addr=(header.sh_addr + item.to_address - item.from_address) % ADDRESS_SPACE,
            sh_offset=header.sh_offset + item.to_offset - item.from_offset,
        )
    return shift_header(draft.gaps, header)


def find_move(header: Shdr, moves: list[Move]) -> Move | None:
    """Return the move that includes a section, or None if it stays."""
    if header.sh_type == SHT.NOBITS or not header.sh_flags & SHF.ALLOC:
        return None
    return next((item for item in moves if item.contains(header.sh_offset, header.sh_size)), None)


def renumber_header(header: Shdr, numbers: Mapping[int, int]) -> Shdr:
    """Return a section header that refers to other sections by their new numbers. A removed section's new number is 0."""
    has_number = header.sh_flags & SHF.INFO_LINK or header.sh_type in (SHT.RELA, SHT.REL)
    info = numbers.get(header.sh_info, header.sh_info) if has_number else header.sh_info
    link = numbers.get(header.sh_link, header.sh_link)
    return header if (link, info) == (header.sh_link, header.sh_info) else header._replace(sh_link=link, sh_info=info)
