"""What sframegen reads of an ELF file: header, segments, sections, notes, symbols. 64-bit, both byte orders, nothing copied."""

from __future__ import annotations

import os
import struct
from bisect import bisect_left, bisect_right
from functools import cached_property
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from cfi.errors import FormatError
from sframegen.elf.compressed import ELFCOMPRESS_ZLIB, expand
from sframegen.elf.opening import map_file
from sframegen.elf.strings import strings_at

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

ByteOrder = Literal["little", "big"]

EM_S390, EM_X86_64, EM_AARCH64 = 22, 62, 183
ET_REL, ET_EXEC, ET_DYN, ET_CORE = 1, 2, 3, 4
PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_NOTE, PT_PHDR, PT_TLS = 1, 2, 3, 4, 6, 7
PT_GNU_EH_FRAME, PT_GNU_STACK, PT_GNU_RELRO, PT_GNU_PROPERTY, PT_GNU_SFRAME = (
    0x6474E550, 0x6474E551, 0x6474E552, 0x6474E553, 0x6474E554,
)  # fmt: skip
PF_X, PF_W, PF_R = 1, 2, 4
PN_XNUM = 0xFFFF
SHN_UNDEF, SHN_LORESERVE, SHN_XINDEX = 0, 0xFF00, 0xFFFF
SHT_NULL, SHT_PROGBITS, SHT_SYMTAB, SHT_STRTAB, SHT_RELA, SHT_NOTE, SHT_NOBITS, SHT_REL, SHT_DYNSYM = 0, 1, 2, 3, 4, 7, 8, 9, 11
SHT_GROUP, SHT_SYMTAB_SHNDX = 17, 18
SHT_GNU_SFRAME = 0x6FFFFFF4
SHF_WRITE, SHF_ALLOC, SHF_EXECINSTR, SHF_INFO_LINK, SHF_GROUP, SHF_COMPRESSED = 1, 2, 4, 0x40, 0x200, 0x800
NT_GNU_BUILD_ID = 3
STT_FUNC, STT_SECTION, STT_GNU_IFUNC = 2, 3, 10

# Symbols' names are cut here: tables whose entries all share one endless name would otherwise cost their square.
MAX_NAME = 8192
MAX_NOTES_PER_BYTE = 3  # of the file: a section, a segment for all notes, one for the properties among them
MAX_ADDRESS = 1 << 64


class Ehdr(NamedTuple):
    e_ident: bytes
    e_type: int
    e_machine: int
    e_version: int
    e_entry: int
    e_phoff: int
    e_shoff: int
    e_flags: int
    e_ehsize: int
    e_phentsize: int
    e_phnum: int
    e_shentsize: int
    e_shnum: int
    e_shstrndx: int


class Phdr(NamedTuple):
    p_type: int
    p_flags: int
    p_offset: int
    p_vaddr: int
    p_paddr: int
    p_filesz: int
    p_memsz: int
    p_align: int


class Shdr(NamedTuple):
    sh_name: int
    sh_type: int
    sh_flags: int
    sh_addr: int
    sh_offset: int
    sh_size: int
    sh_link: int
    sh_info: int
    sh_addralign: int
    sh_entsize: int


class Sym(NamedTuple):
    st_name: int
    st_info: int
    st_other: int
    st_shndx: int
    st_value: int
    st_size: int


class Chdr(NamedTuple):
    ch_type: int
    ch_reserved: int
    ch_size: int
    ch_addralign: int


class Nhdr(NamedTuple):
    n_namesz: int
    n_descsz: int
    n_type: int


# Each on-disk record, declared once: its fields above, its layout here.
LAYOUTS: dict[type[Any], str] = {
    Ehdr: "16sHHIQQQIHHHHHH",
    Phdr: "IIQQQQQQ",
    Shdr: "IIQQQQIIQQ",
    Sym: "IBBHQQ",
    Chdr: "IIQQ",
    Nhdr: "III",
}
MARKS: dict[ByteOrder, str] = {"little": "<", "big": ">"}
RECORDS: dict[tuple[type[Any], ByteOrder], struct.Struct] = {
    (record, order): struct.Struct(mark + layout) for record, layout in LAYOUTS.items() for order, mark in MARKS.items()
}
EHDR_SIZE, PHDR_SIZE, SHDR_SIZE, SYM_SIZE, CHDR_SIZE, NHDR_SIZE = (struct.calcsize("<" + code) for code in LAYOUTS.values())
assert (EHDR_SIZE, PHDR_SIZE, SHDR_SIZE, SYM_SIZE, CHDR_SIZE, NHDR_SIZE) == (64, 56, 64, 24, 24, 12)

R = TypeVar("R", Ehdr, Phdr, Shdr, Sym, Chdr, Nhdr)


class Section(NamedTuple):
    """A section header with its number and name."""

    number: int
    name: str
    header: Shdr


class Symbol(NamedTuple):
    """A function; its name stays in the table until it is asked for."""

    names: bytes
    name_at: int
    address: int
    size: int

    @property
    def name(self) -> str:
        return self.names[self.name_at : self.name_at + MAX_NAME].partition(b"\0")[0].decode(errors="replace")

    def is_named(self, name: bytes) -> bool:
        """Whether this is its name, with or without a symbol version."""
        end = self.name_at + len(name)
        return self.names.startswith(name, self.name_at) and self.names[end : end + 1] in (b"", b"\0", b"@")


class Note(NamedTuple):
    name: bytes
    type: int
    desc: bytes
    offset: int  # of the note's header in the file


class ElfFile:
    """A 64-bit ELF file over a read-only view of its bytes; raises FormatError where header or tables do not fit it."""

    def __init__(
        self, data: memoryview, name: str = "", status: os.stat_result | None = None, descriptor: int | None = None
    ) -> None:
        self.name = name
        self.data = data
        self.status = status  # of the file, when it was opened; None for bytes of no file
        self.descriptor = descriptor  # of the file, as long as whoever opened it keeps it open
        self.byte_order = self._identify()
        self.header = self.record(Ehdr, 0, "ELF header")
        self.shnum, self.shstrndx, self.phnum = self._counts()
        self.segments = self._table(Phdr, self.header.e_phoff, self.phnum, "program header table")
        self._loads = sorted((load for load in self.segments if load.p_type == PT_LOAD), key=lambda load: load.p_vaddr)
        self.sections = self._name(self._table(Shdr, self.header.e_shoff, self.shnum, "section header table"))

    def error(self, message: str, place: str = "", offset: int | None = None) -> FormatError:
        return FormatError(message, place, offset, self.name)

    def record(self, kind: type[R], offset: int, place: str) -> R:
        """The record of that kind at a file offset."""
        code = RECORDS[kind, self.byte_order]
        if offset + code.size > len(self.data):
            raise self.error(f"expected {code.size} bytes, have {max(0, len(self.data) - offset)}", place, 0)
        return kind(*code.unpack_from(self.data, offset))

    def slice(self, offset: int, size: int, place: str) -> memoryview:
        """`size` bytes of the file, checked against its end."""
        if offset + size > len(self.data):
            raise self.error(f"{size} bytes at file offset {offset:#x} reach past the end of the file ({len(self.data):#x})", place)
        return self.data[offset : offset + size]

    # -- sections and segments

    def section(self, name: str) -> Section | None:
        return next((section for section in self.sections if section.name == name), None)

    def contents(self, section: Section) -> memoryview:
        """A section's bytes; compressed ones (zlib, zstd, and the older .zdebug form) are expanded."""
        header = section.header
        if header.sh_type == SHT_NOBITS:
            raise self.error("section has no bytes in the file", section.name)
        raw = self.slice(header.sh_offset, header.sh_size, section.name)
        if header.sh_flags & SHF_COMPRESSED:
            if len(raw) < CHDR_SIZE:
                raise self.error(f"expected {CHDR_SIZE} bytes of compression header, have {len(raw)}", section.name, 0)
            chdr = Chdr(*RECORDS[Chdr, self.byte_order].unpack_from(raw))
            return self._expand(chdr.ch_type, raw[CHDR_SIZE:], chdr.ch_size, section.name)
        if section.name.startswith(".zdebug") and bytes(raw[:4]) == b"ZLIB":
            return self._expand(ELFCOMPRESS_ZLIB, raw[12:], int.from_bytes(raw[4:12], "big"), section.name)
        return raw

    def at(self, address: int, size: int) -> memoryview:
        """`size` bytes at a link-time address, from the PT_LOAD that maps them from the file. vmlinux's do not ascend."""
        number = bisect_right(self._loads, address, key=lambda load: load.p_vaddr) - 1
        if number >= 0:
            load = self._loads[number]
            if address + size <= load.p_vaddr + load.p_filesz:
                return self.slice(load.p_offset + address - load.p_vaddr, size, "PT_LOAD")
        raise self.error(f"no segment maps {size} bytes at address {address:#x}", "program header table")

    def executable_ranges(self) -> list[tuple[int, int]]:
        """(start, end) addresses of executable PT_LOADs, ascending, without the ELF header and program header table."""
        header = self.header
        tables = max(EHDR_SIZE, header.e_phoff + self.phnum * PHDR_SIZE if header.e_phoff == EHDR_SIZE else 0)
        ranges = []
        for load in self.executable_loads():
            if load.p_vaddr + load.p_filesz >= MAX_ADDRESS:
                raise self.error(f"PT_LOAD at {load.p_vaddr:#x} has no valid size", "program header table")
            skip = max(0, tables - load.p_offset)
            if skip < load.p_filesz:
                ranges.append((load.p_vaddr + skip, load.p_vaddr + load.p_filesz))
        return sorted(ranges)

    def executable_loads(self) -> list[Phdr]:
        """Executable PT_LOADs with bytes in the file, by their addresses."""
        return [load for load in self._loads if load.p_flags & PF_X and load.p_filesz]

    # -- what names the file and its functions

    def notes(self) -> Iterator[Note]:
        """Every note of every PT_NOTE, or of SHT_NOTE sections where a file has no program headers."""
        places = [(s.p_offset, s.p_filesz, s.p_align) for s in self.segments if s.p_type == PT_NOTE] or [
            (s.header.sh_offset, s.header.sh_size, s.header.sh_addralign) for s in self.sections if s.header.sh_type == SHT_NOTE
        ]
        self.check_notes()
        for offset, size, align in dict.fromkeys(places):
            yield from self.notes_at(offset, size, align)

    def check_notes(self) -> None:
        """Raises FormatError where notes overlap by more than the two segments that linkers make for some: all are read."""
        sizes = [s.p_filesz for s in self.segments if s.p_type == PT_NOTE]
        sizes += [s.header.sh_size for s in self.sections if s.header.sh_type == SHT_NOTE]
        if sum(sizes) > MAX_NOTES_PER_BYTE * len(self.data):
            raise self.error(f"{len(sizes)} segments and sections of notes overlap", "note")

    def build_id(self) -> bytes | None:
        return next((note.desc for note in self.notes() if note.type == NT_GNU_BUILD_ID and note.name == b"GNU\0"), None)

    def debug_link(self) -> tuple[str, int] | None:
        """(file name, CRC-32 of that file) of .gnu_debuglink."""
        section = self.section(".gnu_debuglink")
        if section is None:
            return None
        raw = bytes(self.contents(section))
        end = raw.find(b"\0")
        crc_at = (end + 4) & ~3
        if end <= 0 or crc_at + 4 > len(raw):
            raise self.error("neither a file name nor its CRC", section.name)
        return os.fsdecode(raw[:end]), int.from_bytes(raw[crc_at : crc_at + 4], self.byte_order)

    def functions(self) -> Iterator[Symbol]:
        """Defined functions of .symtab, else of .dynsym, in the table's order."""
        names = self._symbol_table[0]
        for name_at, address, size in self._functions():
            yield Symbol(names, name_at, address, size)

    def functions_named(self, name: bytes) -> Iterator[Symbol]:
        """With or without a symbol version."""
        if name in self._symbol_table[0]:
            yield from (symbol for symbol in self.functions() if symbol.is_named(name))

    def function_symbols(self) -> list[Symbol]:
        """The functions by address; of several at one address the first in the table stays."""
        found: dict[int, Symbol] = {}
        for symbol in self.functions():
            found.setdefault(symbol.address, symbol)
        return sorted(found.values(), key=lambda symbol: symbol.address)

    def function_symbols_before(self, addresses: Collection[int]) -> list[Symbol]:
        """Those of `function_symbols` that are the last at or before one of the addresses; quicker than all of them."""
        limits = sorted(addresses)
        found: dict[int, tuple[int, int, int]] = {}  # by the first limit that is not below
        for function in self._functions():
            place = bisect_left(limits, function[1])
            if place < len(limits) and (place not in found or found[place][1] < function[1]):
                found[place] = function
        return [Symbol(self._symbol_table[0], *found[place]) for place in sorted(found)]

    def _functions(self) -> Iterator[tuple[int, int, int]]:
        """(place of the name, address, size) of each; symbols as such cost three times as much to go through."""
        code = RECORDS[Sym, self.byte_order]
        for name, info, _, index, value, size in code.iter_unpack(self._symbol_table[1]):
            if info & 15 in (STT_FUNC, STT_GNU_IFUNC) and index != SHN_UNDEF:
                yield name, value, size

    def symbol_tables(self) -> Iterator[Section]:
        """`.symtab` and `.dynsym`: a file has one of each type, and more are not read."""
        for kind in (SHT_SYMTAB, SHT_DYNSYM):
            yield from islice((section for section in self.sections if section.header.sh_type == kind), 1)

    @cached_property
    def relocation_tables(self) -> dict[int, list[Section]]:
        """Those of type SHT_RELA, by the number of the section that they apply to."""
        tables: dict[int, list[Section]] = {}
        for section in self.sections:
            if section.header.sh_type == SHT_RELA:
                tables.setdefault(section.header.sh_info, []).append(section)
        return tables

    @cached_property
    def _symbol_table(self) -> tuple[bytes, memoryview]:
        """Names and entries of the table that `functions` are in; both empty where there is none."""
        table = next(self.symbol_tables(), None)
        if table is None or table.header.sh_link >= len(self.sections):
            return b"", self.data[:0]
        names = bytes(self.contents(self.sections[table.header.sh_link]))
        raw = self.contents(table)
        return names, raw[: len(raw) // SYM_SIZE * SYM_SIZE]

    # -- reading the tables

    def _identify(self) -> ByteOrder:
        ident = bytes(self.data[:16])
        if ident[:4] != b"\x7fELF":
            raise self.error("not an ELF file")
        if len(self.data) < EHDR_SIZE:
            raise self.error(f"expected {EHDR_SIZE} bytes, have {len(self.data)}", "ELF header", 0)
        if ident[4] != 2:
            raise self.error("a 32-bit ELF file: SFrame is for 64-bit ABIs" if ident[4] == 1 else f"unknown ELF class {ident[4]}")
        if ident[5] not in (1, 2):
            raise self.error(f"unknown byte order {ident[5]}", "ELF header", 5)
        if ident[6] != 1:
            raise self.error(f"unknown ELF version {ident[6]}", "ELF header", 6)
        return "little" if ident[5] == 1 else "big"

    def _counts(self) -> tuple[int, int, int]:
        """(shnum, shstrndx, phnum), with what does not fit the header taken from section header 0."""
        header = self.header
        shnum, shstrndx, phnum = header.e_shnum, header.e_shstrndx, header.e_phnum
        if header.e_shoff and (shnum == 0 or shstrndx == SHN_XINDEX or phnum == PN_XNUM):
            first = self.record(Shdr, header.e_shoff, "section header table")
            shnum = shnum or first.sh_size
            shstrndx = first.sh_link if shstrndx == SHN_XINDEX else shstrndx
            phnum = first.sh_info if phnum == PN_XNUM else phnum
        return (shnum if header.e_shoff else 0), shstrndx, (phnum if header.e_phoff else 0)

    def _table(self, kind: type[R], offset: int, count: int, place: str) -> list[R]:
        code = RECORDS[kind, self.byte_order]
        entry_size = self.header.e_phentsize if kind is Phdr else self.header.e_shentsize
        if count and entry_size != code.size:
            raise self.error(f"entries of {entry_size} bytes, expected {code.size}", place)
        return list(map(kind._make, code.iter_unpack(self.slice(offset, count * code.size, place))))

    def _name(self, headers: list[Shdr]) -> list[Section]:
        if not headers or self.shstrndx == SHN_UNDEF:
            return [Section(number, "", header) for number, header in enumerate(headers)]
        if self.shstrndx >= len(headers):
            raise self.error(f"names are in section {self.shstrndx} of {len(headers)}", "section header table")
        strings = headers[self.shstrndx]
        table = bytes(self.slice(strings.sh_offset, strings.sh_size, "section names"))
        places = tuple([header.sh_name for header in headers])
        if max(places) >= len(table):
            stray = next(number for number, place in enumerate(places) if place >= len(table))
            raise self.error(f"name of section {stray} is outside the table of names", "section names", places[stray])
        try:
            return list(map(Section, count(), strings_at(table, places), headers))
        except FormatError as error:
            raise self.error(error.message, "section names") from error

    def notes_at(self, offset: int, size: int, align: int) -> Iterator[Note]:
        """The notes of one section or segment."""
        raw = self.slice(offset, size, "note")
        align = 8 if align == 8 else 4
        code = RECORDS[Nhdr, self.byte_order]
        pos = 0
        while pos + NHDR_SIZE <= len(raw):
            namesz, descsz, kind = code.unpack_from(raw, pos)
            desc = pos + (NHDR_SIZE + namesz + align - 1) // align * align
            if desc + descsz > len(raw):
                raise self.error(f"note of {descsz} bytes reaches past its segment", "note", offset + pos)
            yield Note(
                bytes(raw[pos + NHDR_SIZE : pos + NHDR_SIZE + namesz]),
                kind,
                bytes(raw[desc : desc + descsz]),
                offset + pos,
            )
            pos = desc + (descsz + 3) // 4 * 4
            if pos % align and any(raw[pos : pos + 4]):  # mold 1 puts notes of 4-byte alignment behind those of 8 bytes
                align = 4
            pos = (pos + align - 1) // align * align

    def _expand(self, kind: int, raw: memoryview, size: int, place: str) -> memoryview:
        try:
            return expand(kind, raw, size)
        except ValueError as error:
            raise self.error(str(error), place) from error


def open_elf(path: str | Path) -> ElfFile:
    """The ELF file at `path`. Raises FormatError, or OSError where it cannot be opened."""
    data, status = map_file(path)
    return ElfFile(data, str(path), status)
