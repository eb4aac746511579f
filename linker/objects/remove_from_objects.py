"""Removes the SFrame sections of an object: byte for byte from the record that add-section left; without one by editing.

Editing moves nothing. The bytes of the sections and of their relocations become zeros, and their headers are removed. Tables with
section numbers are written again: headers, groups, symbols.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from linker.existing.take_out import claimed
from linker.inject import undo_record
from linker.inject.apply import Change, write_all
from linker.inject.section_table import renumbered_header
from linker.inject.undo_record import Undo, Write
from linker.objects.laid_out import check_disjoint, is_sframe, members_of
from linker.objects.new_sections import old_sections
from sframegen.base.errors import FormatError, Refusal, RefusedError
from sframegen.elf.file import ElfFile, Section
from sframegen.elf.ranges import gaps
from sframegen.elf.records import (
    EHDR_SIZE,
    ET,
    RECORDS,
    SHDR_SIZE,
    SHF,
    SHN,
    SHT,
    SYM_SIZE,
    Shdr,
    Sym,
    pack_words,
    packed,
    read_words,
)
from sframegen.elf.relocations import relocation_rows
from sframegen.elf.symbols import SymbolTable

if TYPE_CHECKING:
    from collections.abc import Iterator

NUMBERS = (SHT.GROUP, SHT.SYMTAB, SHT.SYMTAB_SHNDX)  # types of sections that have section numbers in them
NO_SYMBOL = Sym(0, 0, 0, 0, 0, 0)


class ObjectRemoval(NamedTuple):
    """`record`: restores the object that add-section was given; without one, the `writes`, which do not change its size."""

    elf: ElfFile
    record: Undo | None
    writes: list[Write]
    section_bytes: int
    still_has_one: bool  # the object that add-section was given had sections

    @property
    def size(self) -> int:
        """Size of the object afterwards."""
        return self.record.original_size if self.record else len(self.elf.data)

    def write(self, out: BinaryIO) -> None:
        """Write the object without the sections to an empty file."""
        write_all(self.elf, Change(self.writes), out, record=self.record)

    def check(self, written: ElfFile) -> list[str]:
        """Return the findings about the written object."""
        if self.record is not None:
            return [] if gives_back(self.elf, written) else ["it differs from the file that add-section was given"]
        return check_edited(self.elf, written)


class Edits(NamedTuple):
    """(object, write) of each change to the objects of one file; str() gives lines. Another process can have it."""

    writes: list[tuple[str, Write]]

    def __str__(self) -> str:
        return "\n".join(f"{name}: {write}" for name, write in self.writes)


def original_object(elf: ElfFile) -> tuple[ElfFile, Undo] | None:
    """Return the object that add-section was given, and its record; None without a valid record."""
    record = undo_record.read(elf.data)
    if record is None or record.gaps or any(offset + len(old) > EHDR_SIZE for offset, old in record.old):
        return None
    data = bytearray(elf.data[: record.original_size])
    for offset, old in record.old:
        data[offset : offset + len(old)] = old
    try:
        original = ElfFile(memoryview(bytes(data)), elf.name)
    except FormatError:
        return None
    return (original, record) if original.header.e_type == ET.REL else None


def gives_back(written: ElfFile, given: ElfFile) -> bool:
    """True if a written object has a record that restores the given one, byte for byte."""
    found = original_object(written)
    return found is not None and found[0].data == given.data


def plan_object_removal(elf: ElfFile, *, force: bool) -> ObjectRemoval | None:
    """None if there is nothing to remove. Without `force`, raises RefusedError for sections that another tool made."""
    size = sum(section.header.sh_size for section in elf.sections if is_sframe(section))
    if not size:
        return None
    found = original_object(elf)
    if found is not None:
        return ObjectRemoval(elf, found[1], [], size, any(map(is_sframe, found[0].sections)))
    if not force:
        message = "another tool made its SFrame section, or rewrote the object since"
        raise RefusedError(Refusal.FOREIGN_SECTION, message, file=elf.name)
    return ObjectRemoval(elf, None, edits(elf), size, still_has_one=False)


def edits(elf: ElfFile) -> list[Write]:
    """Return the writes that remove the sections from an object without a record."""
    check_disjoint(elf)
    if any(section.header.sh_type in NUMBERS and section.header.sh_flags & SHF.COMPRESSED for section in elf.sections):
        raise elf.error("a compressed symbol table or group")
    gone = old_sections(elf)
    if elf.shstrndx in gone:
        raise elf.error("the names of the sections are in the SFrame section")
    kept = [section for section in elf.sections if section.number not in gone]
    numbers = {section.number: new for new, section in enumerate(kept)}
    named = numbers | dict.fromkeys(gone, 0)
    sections = [Section(numbers[section.number], section.name, renumbered_header(section.header, named)) for section in kept]
    left = claimed(elf, [], sections)
    extents = [elf.sections[number].header for number in sorted(gone) if elf.stored(elf.sections[number])]
    holes = (hole for one in extents for hole in gaps(left, one.sh_offset, one.sh_offset + one.sh_size))
    writes = [Write(start, bytes(end - start)) for start, end in holes]
    for section in kept:
        if section.header.sh_type == SHT.GROUP:
            flags, *members = members_of(elf, section) or [0]
            data = pack_words([flags, *(numbers[member] for member in members if member in numbers)], elf.byte_order)
            writes.append(Write(section.header.sh_offset, data.ljust(section.header.sh_size, b"\0")))
            new = sections[numbers[section.number]]
            sections[new.number] = new._replace(header=new.header._replace(sh_size=len(data)))
        elif section.header.sh_type == SHT.SYMTAB:
            writes += _symbol_writes(elf, section, numbers)
    headers = [section.header for section in sections]
    header = elf.header._replace(e_shnum=len(headers) if elf.header.e_shnum else 0)
    if elf.header.e_shnum == 0:
        headers[0] = headers[0]._replace(sh_size=len(headers))
    if header.e_shstrndx != SHN.XINDEX:
        header = header._replace(e_shstrndx=numbers[elf.shstrndx])
    table = packed(headers, elf.byte_order).ljust(elf.shnum * SHDR_SIZE, b"\0")
    return [*writes, Write(elf.header.e_shoff, table), Write(0, packed([header], elf.byte_order))]


def _symbol_writes(elf: ElfFile, table: Section, numbers: dict[int, int]) -> Iterator[Write]:
    """The symbol table, and the table of section numbers that do not fit into it. Symbols of removed sections become empty."""
    code = RECORDS[Sym, elf.byte_order]
    symbols = SymbolTable(elf, table, elf.stored(table))
    raw = bytearray(elf.stored(table))
    wide = read_words(elf.contents(symbols.wide), elf.byte_order) if symbols.wide else []
    named: set[int] | None = None
    for number, entry in enumerate(symbols):
        symbol = entry
        old = symbols.section_of(number, symbol)
        if old == SHN.UNDEF or old >= elf.shnum or numbers.get(old) == old:
            continue
        if old not in numbers:
            named = _named(elf, numbers) if named is None else named
            if number in named:
                raise elf.error(f"symbol {number} is in the SFrame section, and relocations of others name it", table.name)
            symbol, new = NO_SYMBOL, 0
        else:
            new = numbers[old]
        if symbol.st_shndx == SHN.XINDEX:
            wide[number] = new
        else:
            symbol = symbol._replace(st_shndx=new)
        code.pack_into(raw, number * SYM_SIZE, *symbol)
    yield Write(table.header.sh_offset, bytes(raw))
    if symbols.wide is not None:
        yield Write(symbols.wide.header.sh_offset, pack_words(wide, elf.byte_order))


def _named(elf: ElfFile, numbers: dict[int, int]) -> set[int]:
    """Numbers of the symbols that relocations of the remaining sections name."""
    return {info >> 32 for section in elf.sections if section.number in numbers for _, info, _ in relocation_rows(elf, section)}


def check_edited(elf: ElfFile, written: ElfFile) -> list[str]:
    """Return the differences, except for the removed SFrame sections. Sections are compared by their places in the file."""
    gone = old_sections(elf)
    kept = [section for section in elf.sections if section.number not in gone]
    if any(map(is_sframe, written.sections)) or len(kept) != len(written.sections):
        return ["sections other than the SFrame sections have changed"]
    findings = []
    for before, after in zip(kept, written.sections, strict=True):
        if _said(elf, before) != _said(written, after):
            findings.append(f"the header of {before.name} has changed")
        elif before.header.sh_type == SHT.GROUP:
            members = [_place(elf, member) for member in members_of(elf, before)[1:] if member not in gone]
            if members != [_place(written, member) for member in members_of(written, after)[1:]]:
                findings.append(f"the members of {before.name} have changed")
        elif before.header.sh_type == SHT.SYMTAB:
            symbols = zip(_symbols(elf, before), _symbols(written, after), strict=True)
            changed = (n for n, (old, new) in enumerate(symbols) if old[:2] != new[:2] and old[2] not in gone)
            findings += [f"symbol {number} has changed" for number in changed]
        elif before.header.sh_type != SHT.SYMTAB_SHNDX and elf.stored(before) != written.stored(after):
            findings.append(f"the bytes of {before.name} have changed")
    return findings


def _place(elf: ElfFile, number: int) -> tuple[str, int]:
    return (elf.sections[number].name, elf.sections[number].header.sh_offset) if number < len(elf.sections) else ("", number)


def _said(elf: ElfFile, section: Section) -> tuple[str, Shdr, tuple[str, int], tuple[str, int] | None]:
    """Return its header with places in place of section numbers, and without the fields that may change."""
    header = section.header
    info = header.sh_flags & SHF.INFO_LINK or header.sh_type in (SHT.RELA, SHT.REL)
    said = header._replace(sh_link=0, sh_info=0 if info else header.sh_info)
    if header.sh_type in (SHT.NULL, SHT.GROUP):
        said = said._replace(sh_size=0)
    return section.name, said, _place(elf, header.sh_link), _place(elf, header.sh_info) if info else None


def _symbols(elf: ElfFile, table: Section) -> Iterator[tuple[Sym, tuple[str, int], int]]:
    """(symbol without its section number, place of that section, its number) of each."""
    symbols = SymbolTable(elf, table, elf.stored(table))
    for number, symbol in enumerate(symbols):
        index = symbols.section_of(number, symbol) if symbol.st_shndx == SHN.XINDEX else symbol.st_shndx
        yield symbol._replace(st_shndx=0), _place(elf, index), index
