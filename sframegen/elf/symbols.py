"""Reads symbol tables: their entries, the sections that define the symbols, and the functions."""

from __future__ import annotations

import re
import sys
from array import array
from bisect import bisect_left, bisect_right
from functools import cached_property
from itertools import compress, groupby, islice
from operator import itemgetter

from sframegen.base.columns import zeros
from sframegen.base.quick_typing import TYPE_CHECKING, Any, NamedTuple
from sframegen.elf.function_scan import find_last_functions
from sframegen.elf.ranges import Range, index_of_containing_range
from sframegen.elf.records import RECORDS, SHF, SHN, SHT, STT, SYM_SIZE, Sym, read_words

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from sframegen.elf.file import ElfFile, Section

MANGLED = ("_Z", "_R")  # prefixes of mangled C++ and Rust names
# Bytes after which names are cut off, because a hostile table whose entries share one endless name would take quadratic time.
MAX_NAME = 8192
USUAL_NAME = 256  # bytes; most names are shorter
ST_INFO_OFFSET, ST_SHNDX_OFFSET, ST_VALUE_OFFSET = 4, 6, 8
IS_FUNCTION = bytes(info & 15 in (STT.FUNC, STT.GNU_IFUNC) for info in range(256))  # by st_info
HAS_ADDRESS = bytes(info & 15 in (STT.NOTYPE, STT.OBJECT, STT.FUNC, STT.GNU_IFUNC) for info in range(256))  # by st_info
MAPPING = b"$"  # first character of AArch64's mapping symbols, which mark code and data within functions
CHUNK_ENTRIES = 1 << 16  # how many entries are unpacked at a time


class Symbol(NamedTuple):
    """A function symbol. Its name is decoded from the string table `names` only when it is used."""

    names: bytes
    name_at: int  # offset in `names`
    address: int
    size: int

    @property
    def name(self) -> str:
        return self.names[self.name_at : self.name_at + MAX_NAME].partition(b"\0")[0].decode(errors="replace")

    def is_named(self, name: bytes) -> bool:
        """Return True if this is the function's name, with or without a symbol version."""
        end = self.name_at + len(name)
        return self.names.startswith(name, self.name_at) and self.names[end : end + 1] in (b"", b"\0", b"@")


class SymbolTable:
    """The entries of one symbol table, by number; an incomplete last entry is ignored."""

    def __init__(self, elf: ElfFile, section: Section, raw: memoryview | None = None) -> None:
        """`raw`: the table's bytes in the file, for callers that write there; None: its contents, decompressed if necessary."""
        self._elf = elf
        self.section = section
        raw = elf.contents(section) if raw is None else raw
        self.raw = raw[: len(raw) // SYM_SIZE * SYM_SIZE]
        self._code = RECORDS[Sym, elf.byte_order]

    def __len__(self) -> int:
        return len(self.raw) // SYM_SIZE

    def __getitem__(self, number: int) -> Sym:
        return Sym._make(self._code.unpack_from(self.raw, number * SYM_SIZE))

    def __iter__(self) -> Iterator[Sym]:
        return map(Sym._make, self.rows())

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Iterate over the entries as plain tuples, which takes a third of the time."""
        return self._code.iter_unpack(self.raw)

    @cached_property
    def names(self) -> bytes:
        """The string table with the entries' names; empty if there is none."""
        return bytes(self._strings)

    @cached_property
    def _strings(self) -> memoryview:
        number = self.section.header.sh_link
        return self._elf.contents(self._elf.sections[number]) if number < len(self._elf.sections) else memoryview(b"")

    def name_bytes(self, at: int) -> bytes:
        """Return the name at an offset without copying the whole string table."""
        part = bytes(self._strings[at : at + USUAL_NAME])
        if b"\0" not in part:
            part = bytes(self._strings[at : at + MAX_NAME])
        return part.partition(b"\0")[0]

    @cached_property
    def index_section(self) -> Section | None:
        """The SHT_SYMTAB_SHNDX section, which has the section numbers that are too large for st_shndx; None without one."""
        sections = (section for section in self._elf.sections if section.header.sh_type == SHT.SYMTAB_SHNDX)
        return next((section for section in sections if section.header.sh_link == self.section.number), None)

    @cached_property
    def _extended_indexes(self) -> list[int]:
        return [] if self.index_section is None else read_words(self._elf.contents(self.index_section), self._elf.byte_order)

    def section_of(self, number: int, symbol: Sym) -> int:
        """Return the number of the section that defines entry `number`, whose fields are `symbol`; SHN_UNDEF if none does."""
        if symbol.st_shndx == SHN.XINDEX:
            return self._extended_indexes[number] if number < len(self._extended_indexes) else SHN.UNDEF
        return symbol.st_shndx if symbol.st_shndx < SHN.LORESERVE else SHN.UNDEF

    def sections(self) -> list[int]:
        """Return for each entry the number of the section that defines it, as `section_of` does."""
        halves = array("H", bytes(self.raw))
        if self._elf.byte_order != sys.byteorder:
            halves.byteswap()
        sections = halves[ST_SHNDX_OFFSET // 2 :: SYM_SIZE // 2].tolist()
        for number, section in enumerate(sections):
            if section >= SHN.LORESERVE:
                sections[number] = self.section_of(number, self[number])
        return sections

    def defined_in(self, sections: Iterable[int]) -> Iterator[int]:
        """Yield the numbers of entries that these sections define, and of all with SHN_XINDEX if a section number needs that."""
        stored = {number if number < SHN.LORESERVE else SHN.XINDEX for number in sections}
        st_shndx_values = {int.from_bytes(value.to_bytes(2, self._elf.byte_order), sys.byteorder) for value in stored}
        for start in range(0, len(self), CHUNK_ENTRIES):
            chunk = self.raw[start * SYM_SIZE : min(len(self), start + CHUNK_ENTRIES) * SYM_SIZE]
            fields = chunk.cast("H")[ST_SHNDX_OFFSET // 2 :: SYM_SIZE // 2].tolist()
            if not st_shndx_values.isdisjoint(fields):
                yield from (start + index for index, field in enumerate(fields) if field in st_shndx_values)


def symbol_tables(elf: ElfFile) -> Iterator[Section]:
    """Yield `.symtab` and `.dynsym` if the file has them. A file should have one of each; further ones are ignored."""
    for kind in (SHT.SYMTAB, SHT.DYNSYM):
        yield from islice((section for section in elf.sections if section.header.sh_type == kind), 1)


class FunctionColumns:
    """Looks up functions by address in .symtab or, without one, in .dynsym."""

    def __init__(self, elf: ElfFile) -> None:
        self._elf = elf
        self._table = _open_function_table(elf)
        self._order = elf.byte_order

    @cached_property
    def _boundaries(self) -> array[int]:
        """The ascending addresses of all symbols where a function without a size may end."""
        table = self._table
        assert table is not None
        raw = bytes(table.raw)
        has_address = raw[ST_INFO_OFFSET::SYM_SIZE].translate(HAS_ADDRESS)
        sections = array("H", raw)[ST_SHNDX_OFFSET // 2 :: SYM_SIZE // 2]  # SHN_UNDEF is 0 in both byte orders
        words = array("Q", raw)
        if self._order != sys.byteorder:
            words.byteswap()
        addresses = words[ST_VALUE_OFFSET // 8 :: SYM_SIZE // 8]
        numbers = [number for number in compress(range(len(has_address)), has_address) if sections[number]]

        def is_mapping(number: int) -> bool:
            is_local = raw[number * SYM_SIZE + ST_INFO_OFFSET] == STT.NOTYPE
            return is_local and table.names.startswith(MAPPING, table[number].st_name)

        if MAPPING in table.names:
            numbers = [number for number in numbers if not is_mapping(number)]
        return array("Q", sorted(map(addresses.__getitem__, numbers)))

    @cached_property
    def _code(self) -> list[Range]:
        """The address ranges of code sections, ascending; only in damaged files do they overlap."""
        headers = [section.header for section in self._elf.sections if section.header.sh_flags & SHF.EXECINSTR]
        return sorted((header.sh_addr, header.sh_addr + header.sh_size) for header in headers if header.sh_size)

    def _end_of(self, symbol: Symbol) -> int:
        """Return the address where a function ends: without a size, at the next symbol or at the end of its section."""
        if symbol.size:
            return symbol.address + symbol.size
        after = bisect_right(self._boundaries, symbol.address)
        section = index_of_containing_range(self._code, symbol.address)
        ends = [*self._boundaries[after : after + 1], *(() if section is None else (self._code[section][1],))]
        return min(ends, default=1 << 64)

    def functions_at(self, addresses: Collection[int]) -> list[tuple[Symbol, list[int]]]:
        """Return (function, those of the addresses that lie in it) for each function that contains any of the addresses."""
        if self._table is None:
            return []
        ordered = array("Q", sorted(addresses))
        numbers = zeros("I", len(ordered))
        find_last_functions(self._table.raw, self._order == "big", ordered, numbers)
        functions: list[tuple[Symbol, list[int]]] = []
        for number, group in groupby(zip(ordered, numbers, strict=True), itemgetter(1)):
            if number:
                entry = self._table[number - 1]
                symbol = Symbol(self._table.name_bytes(entry.st_name), 0, entry.st_value, entry.st_size)
                end = self._end_of(symbol)
                functions.append((symbol, [address for address, _ in group if address < end]))
        return [(symbol, contained) for symbol, contained in functions if contained]


def read_functions(elf: ElfFile) -> Iterator[Symbol]:
    """Yield the defined functions of .symtab or, without one, of .dynsym, in the table's order."""
    table = _open_function_table(elf)
    if table is not None:
        for name_at, address, size in _select_functions(table.rows()):
            yield Symbol(table.names, name_at, address, size)


def copy_symbol_table(elf: ElfFile) -> Callable[[], list[Symbol]]:
    """Copy the symbol table, so that later changes to the file do not matter; return a callable that reads its functions."""
    table = _open_function_table(elf)
    if table is None:
        return list
    code, raw, names = RECORDS[Sym, elf.byte_order], bytes(table.raw), table.names
    return lambda: [Symbol(names, *function) for function in _select_functions(code.iter_unpack(raw))]


def find_functions_named(elf: ElfFile, name: bytes) -> Iterator[Symbol]:
    """Yield the functions with a name, which may lack the symbol version."""
    table = _open_function_table(elf)
    if table is not None and name in table.names:
        yield from (symbol for symbol in read_functions(elf) if symbol.is_named(name))


def find_addresses_named(elf: ElfFile, names: Iterable[bytes]) -> dict[bytes, int]:
    """Return the addresses of the defined symbols of any type with these names; of several with one name, the last one's."""
    section = next(symbol_tables(elf), None)
    if section is None:
        return {}
    table = SymbolTable(elf, section)
    by_offset = {match.start(): name for name in names for match in re.finditer(re.escape(name + b"\0"), table.names)}
    symbols = ((name_at, value) for name_at, _, _, section, value, _ in table.rows() if name_at in by_offset and section)
    return {by_offset[name_at]: value for name_at, value in symbols}


def sorted_functions(elf: ElfFile) -> list[Symbol]:
    """Return the functions sorted by address; of several at one address, only the first in the table."""
    by_address: dict[int, Symbol] = {}
    for symbol in read_functions(elf):
        by_address.setdefault(symbol.address, symbol)
    return sorted(by_address.values(), key=lambda symbol: symbol.address)


def last_functions_before(elf: ElfFile, addresses: Collection[int]) -> list[Symbol]:
    """Return the last function at or before each of the addresses; this is faster than sorted_functions."""
    table = _open_function_table(elf)
    if table is None or not addresses:
        return []
    limits = sorted(addresses)
    last: dict[int, Symbol] = {}  # by the index of the first limit that is not below the function's address
    for name_at, address, size in _select_functions(table.rows()):
        index = bisect_left(limits, address)
        if index < len(limits) and (index not in last or last[index].address < address):
            last[index] = Symbol(table.names, name_at, address, size)
    return [last[index] for index in sorted(last)]


def _open_function_table(elf: ElfFile) -> SymbolTable | None:
    section = next(symbol_tables(elf), None)
    return SymbolTable(elf, section) if section is not None and section.header.sh_link < len(elf.sections) else None


def _select_functions(rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[int, int, int]]:
    """Yield (name offset, address, size) of each defined function among the rows."""
    for name_at, info, _, section, address, size in rows:
        if IS_FUNCTION[info] and section:  # not SHN_UNDEF
            yield name_at, address, size
