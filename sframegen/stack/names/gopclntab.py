"""Reads the table that the Go linker puts into each program, even a stripped one: functions by address, and source lines.

Go calls it pclntab. Since Go 1.18, after the first 8 bytes its header has these words: the numbers of functions and of files, the
start of text, and the offsets of its parts: names, units, files, values and functions. The last part begins with two numbers of 4
bytes for each function, by ascending address: the function's offset from the start of text, and the offset of its record. A record
has fields of 4 bytes. Some are offsets in the part of values, for what changes within a function: file, line and stack in use.
There, pairs of varints say by how much the value changes, and for how many bytes of code the new value holds. The input may be
hostile, so every offset is checked, and texts and the steps of such tables have limits.
"""

from __future__ import annotations

import re
import sys
from array import array
from bisect import bisect_right
from functools import cached_property
from itertools import islice, pairwise
from typing import TYPE_CHECKING, NamedTuple

from sframegen.base.errors import FormatError
from sframegen.base.text import printable
from sframegen.elf.records import PF, PT, RECORDS, SHT, ByteOrder, Rela

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.elf.file import ElfFile

SECTIONS = (".gopclntab", ".data.rel.ro.gopclntab")
GO_SECTIONS = (".go.buildinfo", ".note.go.buildid", ".gosymtab", ".noptrdata")  # only programs that the Go linker made have them
MAX_TEXT = 8192  # bytes of a name or path
MAX_STEPS = 1 << 20  # of one table of values
MAX_FUNCTIONS = 1 << 24
MAX_ALL_STEPS = 1 << 24  # of the SP tables of all functions
WORDS_AT = 8  # offset of the words of the header: after magic number, two zero bytes, instruction size, and size of a pointer
FUNCTION_COUNT, TEXT_START, NAMES = 0, 2, 3  # indexes of words in the header; from NAMES on, there are five offsets of parts
OFFSET_SIZE = 4  # bytes of a function's address in the table
MAX_MODULE_DATA = 512  # bytes of the runtime's record of a program (moduledata) up to the addresses of its text
MAX_RELOCATIONS = 1 << 22  # of all sections
NAME_FIELD, SP_FIELD, FILE_FIELD, LINE_FIELD, UNIT_FIELD = 1, 4, 5, 6, 8  # numbers of fields in a function's record
IS_OUTERMOST, WRITES_SP = 1, 2  # bits of a function's flags
MAX_FRAME = 1 << 31  # bytes
WORD_SIZE = 8  # bytes of an address on all machines here
MAX_CANDIDATES = 64  # matches in a segment, headers in a file and names in a table that are tried
# The magic number of 1.18 or 1.20 in either byte order, two zero bytes, the instruction size, and the size of a pointer.
HEADER = re.compile(rb"(?:[\xf0\xf1]\xff\xff\xff|\xff\xff\xff[\xf0\xf1])\x00\x00[\x01\x02\x04]\x08", re.DOTALL)


class GoLayout(NamedTuple):
    """A layout of the table. `flags_at`: offset of the flags in a function's record, counted from after the address."""

    magic: int
    since: str
    flags_at: int


GO_LAYOUTS = (GoLayout(0xFFFFFFF0, "1.18", 33), GoLayout(0xFFFFFFF1, "1.20", 37))


class GoFunction(NamedTuple):
    """A function of the table. `end`: where the next function begins."""

    name: str
    start: int
    end: int


class GoLine(NamedTuple):
    """A function's source line. `source`: path of the file as the compiler wrote it."""

    source: str
    line: int


class GoFrame(NamedTuple):
    """A function's use of the stack: `steps` are (offset of code, bytes of stack in use from there on), the first at offset 0.

    `end`: the end of its code. `is_outermost`: the function is the outermost one of a stack.
    """

    name: str
    start: int
    end: int
    steps: tuple[tuple[int, int], ...]
    is_outermost: bool


class _TableEntry(NamedTuple):
    """An entry of the table: the function's start, the start of the next function, and the offset of its record."""

    start: int
    end: int
    record: int


class GoTable:
    """Functions and lines by link-time address. Only the constructor raises FormatError, for a bad header."""

    def __init__(self, data: memoryview, byte_order: ByteOrder, text_start: int | None = None, name: str = "") -> None:
        """`text_start`: replaces that of the header, which may be filled in only when the program is loaded."""
        self._data = data
        self._order: ByteOrder = byte_order
        self._name = name
        if len(data) < WORDS_AT:
            raise FormatError("too short for a header", ".gopclntab", 0, name)
        magic, zeros = int.from_bytes(data[:4], byte_order), int.from_bytes(data[4:6], byte_order)
        self._instruction_size, self._word_size = data[6], data[7]  # the first one: in which code is counted
        layout = next((layout for layout in GO_LAYOUTS if layout.magic == magic), None)
        if layout is None or zeros or self._instruction_size not in (1, 2, 4) or self._word_size not in (4, 8):
            raise FormatError("unknown header", ".gopclntab", 0, name)
        self.layout = layout
        self._text_start = self.header_word(TEXT_START) if text_start is None else text_start
        self._names, self._units, self._files, self._values, self._functions = map(self.header_word, range(NAMES, NAMES + 5))
        self._decoded: dict[int, tuple[array[int], array[int]]] = {}  # tables of files and lines, by offset
        self._values_left = len(data) // 2  # that may still be decoded
        self.count = self.header_word(FUNCTION_COUNT)
        if self.count > MAX_FUNCTIONS or self._functions + (2 * self.count + 1) * OFFSET_SIZE > len(data):
            raise FormatError(f"{self.count:,} functions do not fit", ".gopclntab", 8, name)

    def header_word(self, number: int) -> int:
        """Return the word with that index in the header. Raises FormatError."""
        at = WORDS_AT + number * self._word_size
        word = self._read_number(at, self._word_size)
        if word is None:
            raise FormatError("its header is cut off", ".gopclntab", at, self._name)
        return word

    def function_at(self, address: int) -> GoFunction | None:
        """Return the function that contains an address; None if there is none, or it has no name."""
        entry = self._entry_at_address(address)
        if entry is None:
            return None
        name = self._read_text(self._names, self._read_field(entry, NAME_FIELD))
        return GoFunction(name, entry.start, entry.end) if name else None

    def line_at(self, address: int) -> GoLine | None:
        """Return the line of the instruction, which may be in a function inlined there; None if unknown."""
        entry = self._entry_at_address(address)
        if entry is None:
            return None
        file = self._find_value(entry, self._read_field(entry, FILE_FIELD), address)
        line = self._find_value(entry, self._read_field(entry, LINE_FIELD), address)
        source = self._read_source(entry, file) if file is not None and file >= 0 else ""
        return GoLine(source, line) if source and line is not None and line > 0 else None

    def functions(self) -> Iterator[GoFunction]:
        """Yield all functions by ascending address."""
        yield from filter(None, (self.function_at(self._start_of(number)) for number in range(self.count)))

    def frames(self) -> Iterator[GoFrame]:
        """Yield the frames of all functions whose SP table can be read, by ascending address."""
        steps_left = MAX_ALL_STEPS
        cached: dict[int, tuple[tuple[tuple[int, int], ...], int]] = {}
        for entry in self._entries_with_code():
            offset = self._read_field(entry, SP_FIELD) or 0
            if offset not in cached:  # functions share equal tables
                cached[offset] = self._read_sp_steps(offset)
            steps, size = cached[offset]
            steps_left -= len(steps)  # also those of a table that cannot be used
            if steps_left <= 0:
                return
            if 0 < size <= entry.end - entry.start:
                name = self._read_text(self._names, self._read_field(entry, NAME_FIELD))
                yield GoFrame(name, entry.start, entry.start + size, steps, self._read_flags(entry) & IS_OUTERMOST != 0)

    @property
    def has_names(self) -> bool:
        """Return True if one of the first functions has a name."""
        return any(self.function_at(self._start_of(number)) for number in range(min(self.count, MAX_CANDIDATES)))

    def outermost_ranges(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges of functions that begin a stack and write SP, so that no caller can be found from them."""
        for entry in self._entries_with_code():
            if self._read_flags(entry) & (IS_OUTERMOST | WRITES_SP) == IS_OUTERMOST | WRITES_SP:
                yield entry.start, entry.end

    @property
    def span(self) -> tuple[int, int]:
        """Return the first function's offset from the start of text, and the bytes from there to the end of the last one."""
        return self._entries[0], self._entries[-1] - self._entries[0]

    def _start_of(self, number: int) -> int:
        return self._text_start + self._entries[2 * number]

    @cached_property
    def _entries(self) -> array[int]:
        """Return the address and the record's offset of each function, by turns, then the end of the last one's code."""
        size = (2 * self.count + 1) * OFFSET_SIZE
        entries = array("I", bytes(self._data[self._functions : self._functions + size]))
        if self._order != sys.byteorder:
            entries.byteswap()
        return entries

    def _entry_at_address(self, address: int) -> _TableEntry | None:
        next_number = bisect_right(range(self.count), address, key=self._start_of)
        return self._entry(next_number - 1) if next_number and address < self._start_of(next_number) else None

    def _entries_with_code(self) -> Iterator[_TableEntry]:
        """Yield all entries except those whose function ends before it begins."""
        return (entry for entry in map(self._entry, range(self.count)) if entry.start < entry.end)

    def _entry(self, number: int) -> _TableEntry:
        return _TableEntry(self._start_of(number), self._start_of(number + 1), self._functions + self._entries[2 * number + 1])

    def _read_number(self, at: int, size: int) -> int | None:
        """Return the unsigned number of `size` bytes at an offset; None outside of the table."""
        if at < 0 or at + size > len(self._data):
            return None
        return int.from_bytes(self._data[at : at + size], self._order)

    def _read_field(self, entry: _TableEntry, number: int) -> int | None:
        """Return the field of 4 bytes with that number in the function's record; number 0 is the address."""
        return self._read_number(entry.record + OFFSET_SIZE + 4 * (number - 1), 4)

    def _read_text(self, part: int, offset: int | None) -> str:
        """Return the zero-terminated text at an offset in a part of the table; empty outside of the table."""
        if offset is None or not 0 <= part + offset < len(self._data):
            return ""
        raw = bytes(self._data[part + offset : part + offset + MAX_TEXT])
        return printable(raw.partition(b"\0")[0].decode(errors="replace"))

    def _read_source(self, entry: _TableEntry, file: int) -> str:
        """Return the path of a file, by its number in the function's compilation unit; empty if unknown."""
        unit = self._read_field(entry, UNIT_FIELD)
        if unit is None:
            return ""
        offset = self._read_number(self._units + 4 * (unit + file), 4)
        return "" if offset == 0xFFFFFFFF else self._read_text(self._files, offset)

    def _find_value(self, entry: _TableEntry, offset: int | None, address: int) -> int | None:
        """Return the value for the code at an address, from the table at an offset in the part of values."""
        ends, values = self._decode_values(offset or 0)
        index = bisect_right(ends, address - entry.start)
        return values[index] if index < len(ends) else None

    def _decode_values(self, offset: int) -> tuple[array[int], array[int]]:
        """Return where each value of the table at an offset ends in the function's code, and the values.

        All tables together have no more steps than the data has pairs of bytes, so that overlapping ones cannot take longer.
        """
        if offset not in self._decoded:
            ends, values, end = array("Q"), array("q"), 0
            for value, size in islice(self._read_values(offset), self._values_left):
                end += size
                ends.append(end)
                values.append(value)
            self._values_left -= len(ends)
            self._decoded[offset] = ends, values
        return self._decoded[offset]

    def _read_sp_steps(self, offset: int) -> tuple[tuple[tuple[int, int], ...], int]:
        """Return the SP steps at an offset, and the bytes of code that they cover, or 0 if the steps are impossible."""
        steps: list[tuple[int, int]] = []
        size = 0
        for value, length in self._read_values(offset):
            if not length or not 0 <= value < MAX_FRAME:
                return tuple(steps), 0
            steps.append((size, value))
            size += length
        return tuple(steps), size

    def _read_values(self, offset: int) -> Iterator[tuple[int, int]]:
        """Yield the values of the table at an offset, each with the bytes of code that have it; 0 bytes where the table is cut off.

        An offset of 0 means that there is no table. A table ends with a change of 0. The lowest bit of a change is its sign.
        """
        at, value = self._values + offset, -1  # as Go does, which adds the first change to -1
        for step in range(MAX_STEPS if offset else 0):
            change, at = self._read_varint(at)
            if change is None or (change == 0 and step):
                return
            length, at = self._read_varint(at)
            value += -(change + 1 >> 1) if change & 1 else change >> 1
            yield value, (length or 0) * self._instruction_size
            if length is None:
                return

    def _read_flags(self, entry: _TableEntry) -> int:
        return self._read_number(entry.record + OFFSET_SIZE + self.layout.flags_at, 1) or 0

    def _read_varint(self, at: int) -> tuple[int | None, int]:
        """Return an unsigned LEB128 number of at most 32 bits, None if it is cut off or longer, and the offset of its end."""
        value = 0
        for shift in range(0, 35, 7):
            if not 0 <= at < len(self._data):
                return None, at
            byte = self._data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFFFFFF, at
        return None, at


def find_go_table(elf: ElfFile) -> GoTable | None:
    """Return the table of a program that the Go linker made; None for other files, and for a damaged table."""
    try:
        tables = (section for section in elf.sections if section.name in SECTIONS and section.header.sh_type != SHT.NOBITS)
        if (section := next(tables, None)) is not None:
            return _open_table(elf, elf.contents(section), section.header.sh_addr)
        if any(section.name in GO_SECTIONS for section in elf.sections) or not elf.sections:
            return _search_table(elf)
    except FormatError:
        pass
    return None


def _open_table(elf: ElfFile, data: memoryview, address: int) -> GoTable:
    """Return the table in `data`, whose address is `address`. Raises FormatError."""
    table = GoTable(data, elf.byte_order, name=elf.name)
    if table.header_word(TEXT_START):
        return table
    return GoTable(data, elf.byte_order, _find_text_start(elf, table, address), elf.name)


def _find_text_start(elf: ElfFile, table: GoTable, address: int) -> int:
    """Return the start of text for a header without it, because the dynamic loader fills it in, or Go 1.26 or later wrote it.

    The runtime's record of the program begins with the address of the table. Somewhere after that, the addresses of the first
    function and of the end of the last one are next to each other.
    """
    relocated = _read_relocated_words(elf)
    if text_start := relocated.get(address + WORDS_AT + TEXT_START * WORD_SIZE):
        return text_start
    first, size = table.span
    for data_address in _find_pointers(elf, address, relocated):
        words = [relocated.get(at) or _read_word(elf, at) for at in range(data_address, data_address + MAX_MODULE_DATA, WORD_SIZE)]
        for start, end in pairwise(words):
            if start >= first and end - start == size:
                return start - first
    text = elf.section(".text")
    return text.header.sh_addr if text else 0


def _read_relocated_words(elf: ElfFile) -> dict[int, int]:
    """Return {address: link-time address}, to which the dynamic loader adds the load address, for each relocated word."""
    words: dict[int, int] = {}
    layout = RECORDS[Rela, elf.byte_order]
    rows_left = min(len(elf.data) // layout.size, MAX_RELOCATIONS)  # sections may share their bytes
    for section in elf.sections:
        if section.header.sh_type == SHT.RELA:
            raw = elf.contents(section)[: rows_left * layout.size]
            rows_left -= len(raw) // layout.size
            rows = map(Rela._make, layout.iter_unpack(raw[: len(raw) // layout.size * layout.size]))
            words |= {row.r_offset: row.r_addend for row in rows if not row.symbol}
    return words


def _find_pointers(elf: ElfFile, address: int, relocated: dict[int, int]) -> Iterator[int]:
    """Yield the addresses of data words that hold `address`."""
    yield from islice((at for at, value in relocated.items() if value == address), MAX_CANDIDATES)
    pattern = re.compile(re.escape(address.to_bytes(WORD_SIZE, elf.byte_order)))
    for start, data in _data_segments(elf):
        yield from (start + match.start() for match in islice(pattern.finditer(data), MAX_CANDIDATES))


def _data_segments(elf: ElfFile) -> Iterator[tuple[int, memoryview]]:
    """Yield address and bytes of each segment without code: together no more bytes than the file has, as segments may overlap."""
    bytes_left = len(elf.data)
    for load in elf.segments:
        if load.p_type == PT.LOAD and not load.p_flags & PF.X:
            bytes_left -= max(load.p_filesz, 1)
            if bytes_left < 0:
                return
            yield load.p_vaddr, elf.slice(load.p_offset, load.p_filesz, "PT_LOAD")


def _read_word(elf: ElfFile, address: int) -> int:
    try:
        return int.from_bytes(elf.at(address, WORD_SIZE), elf.byte_order)
    except FormatError:
        return 0


def _search_table(elf: ElfFile) -> GoTable | None:
    """Return the table that a search in the data of the program finds, in case its sections were renamed, joined or removed."""
    matches = ((start, data, match.start()) for start, data in _data_segments(elf) for match in HEADER.finditer(data))
    for start, data, at in islice(matches, MAX_CANDIDATES):
        try:
            if GoTable(data[at:], elf.byte_order).has_names:
                return _open_table(elf, data[at:], start + at)
        except FormatError:
            continue
    return None
