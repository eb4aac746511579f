"""Finds the source file and line of addresses in `.debug_line`.

pyelftools is not used because hostile input can take it any time: two bytes can stand for any number of empty file names, and any
number of units can share a line program. This reader needs time linear in the size of the section.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from cfi.machine import Cursor
from sframegen.base.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from sframegen.base.columns import Bytes
    from sframegen.elf.file import ElfFile
    from sframegen.elf.records import ByteOrder

    TextPlace = tuple[str, int]  # the name of a section, and the offset of a text in it
    LineRow = tuple[int, int, int]  # address, number of a file, line
    LineRange = tuple[LineRow, int, list[TextPlace]]  # a row, the address of the next one, the file names of its unit

MAX_NAME = 4096  # bytes
ESCAPE_64 = 0xFFFFFFFF  # comes before a length of eight bytes: 64-bit DWARF
FORM_SIZES = {0x0B: 1, 0x05: 2, 0x06: 4, 0x07: 8, 0x1E: 16}  # bytes of DW_FORM_data1, data2, data4, data8 and data16
STRING, BLOCK, UDATA = 0x08, 0x09, 0x0F  # DW_FORM_*
STRING_SECTIONS = {0x0E: ".debug_str", 0x1F: ".debug_line_str"}  # that DW_FORM_strp and DW_FORM_line_strp refer to
PATH = 1  # DW_LNCT_path
EXTENDED, COPY, ADVANCE_PC, ADVANCE_LINE, SET_FILE, CONST_ADD_PC, FIXED_ADVANCE_PC = 0, 1, 2, 3, 4, 8, 9  # DW_LNS_*
END_SEQUENCE, SET_ADDRESS = 1, 2  # DW_LNE_*


class _Reader(Cursor):
    """A cursor over a section's bytes. Reading past `end`, the end of the section or of the current unit, raises ValueError."""

    def __init__(self, data: Bytes, order: ByteOrder) -> None:
        super().__init__(data, 0, order == "big", 0, 0, None)
        self.bytes = bytes(data)

    def skip(self, size: int) -> int:
        """Move past `size` bytes; return the offset where they begin."""
        at: int = self.pos
        if size > self.end - at:
            raise ValueError
        self.pos += size
        return at

    def number(self, size: int) -> int:
        return self._checked(self.read_unsigned(size))

    def uleb(self) -> int:
        return self._checked(self.read_uleb())

    def sleb(self) -> int:
        return self._checked(self.read_sleb())

    def _checked(self, number: int) -> int:
        if self.fault:
            raise ValueError
        return number

    def skip_text(self) -> int:
        """Move past the zero-terminated text at this position; return the offset where it begins."""
        at: int = self.pos
        self.pos = self.bytes.index(b"\0", at, self.end) + 1
        return at


def source_lines(elf: ElfFile, addresses: Collection[int]) -> dict[int, str]:
    """Return a text such as `file.s:8` for each address that has a line. If it has several, the first counts. Does not raise."""
    section = elf.section(".debug_line")
    if not addresses or section is None:
        return {}
    wanted, found = sorted(addresses), dict[int, str]()
    try:
        for (start, file, line), end, files in _read_ranges(_Reader(elf.contents(section), elf.byte_order)):
            for address in wanted[bisect_left(wanted, start) : bisect_left(wanted, end)]:
                if address not in found and 0 <= file < len(files):
                    found[address] = f"{_read_text(elf, *files[file])}:{line}"
    except (ValueError, FormatError):
        pass  # the section is damaged; lines before the damage are kept
    return found


def _read_text(elf: ElfFile, name: str, at: int) -> str:
    section = elf.section(name)
    data = b"" if section is None else bytes(elf.contents(section)[at : at + MAX_NAME])
    return data.partition(b"\0")[0].decode(errors="replace")


def _read_ranges(reader: _Reader) -> Iterator[LineRange]:
    """Yield a range for each row. Raises ValueError for a damaged section."""
    while reader.pos < len(reader.bytes):
        reader.end = len(reader.bytes)
        length, offset_size = reader.number(4), 4
        if length == ESCAPE_64:
            length, offset_size = reader.number(8), 8
        begin = reader.skip(length)
        reader.pos, reader.end = begin, begin + length
        dwarf_version = reader.number(2)
        if 2 <= dwarf_version <= 5:
            reader.skip(2 if dwarf_version == 5 else 0)  # sizes of an address and a segment selector
            header_length = reader.number(offset_size)
            yield from _run_line_program(reader, dwarf_version, offset_size, min(reader.end, reader.pos + header_length))
        reader.pos = reader.end


def _run_line_program(reader: _Reader, dwarf_version: int, offset_size: int, start: int) -> Iterator[LineRange]:
    """Yield the rows of a unit, like `_read_ranges`. `offset_size`: bytes of an offset. `start`: where the instructions begin."""
    step = reader.number(1)  # minimum_instruction_length
    reader.skip(1 if dwarf_version < 4 else 2)  # maximum_operations_per_instruction, since DWARF 4, and default_is_stmt
    line_base = (reader.number(1) + 128) % 256 - 128  # a signed byte
    line_range, opcode_base = reader.number(1), reader.number(1)
    lengths = [reader.number(1) for _ in range(opcode_base - 1)]
    if not line_range:
        raise ValueError
    files = _read_file_names(reader, offset_size) if dwarf_version == 5 else _read_old_file_names(reader)
    address, file, line = 0, 1, 1
    last_row: LineRow | None = None
    reader.pos = start
    while reader.pos < reader.end:
        opcode, is_row, ends_sequence = reader.number(1), False, False
        if opcode >= opcode_base:
            address_advance, line_advance = divmod(opcode - opcode_base, line_range)
            address, line, is_row = address + address_advance * step, line + line_base + line_advance, True
        elif opcode == EXTENDED:
            size = reader.uleb()
            operands_end = reader.pos + size
            extended_opcode = reader.number(1)
            if extended_opcode == SET_ADDRESS:
                address = reader.number(min(size, 9) - 1)
            is_row = ends_sequence = extended_opcode == END_SEQUENCE
            reader.pos = max(operands_end, reader.pos)
        elif opcode == COPY:
            is_row = True
        elif opcode == ADVANCE_PC:
            address += reader.uleb() * step
        elif opcode == ADVANCE_LINE:
            line += reader.sleb()
        elif opcode == SET_FILE:
            file = reader.uleb()
        elif opcode == CONST_ADD_PC:
            address += (255 - opcode_base) // line_range * step
        elif opcode == FIXED_ADVANCE_PC:
            address += reader.number(2)
        else:
            for _ in range(lengths[opcode - 1]):
                reader.uleb()
        if is_row:
            if last_row and last_row[0] < address:
                yield last_row, address, files
            last_row = address, file, line
        if ends_sequence:
            address, file, line, last_row = 0, 1, 1, None


def _read_old_file_names(reader: _Reader) -> list[TextPlace]:
    """Return the names of files in a table of versions 2 to 4, whose numbers begin with 1."""
    while reader.bytes[reader.skip_text()]:  # the names of directories come first
        pass
    names = [(".debug_line", len(reader.bytes))]  # number 0 gets an empty name
    while reader.bytes[reader.pos : reader.pos + 1] != b"\0":
        names.append((".debug_line", reader.skip_text()))
        for _ in range(3):  # directory, time, size
            reader.uleb()
    return names


def _read_file_names(reader: _Reader, offset_size: int) -> list[TextPlace]:
    """Return the names of files in a table of version 5."""
    names: list[TextPlace] = []
    for _ in range(2):  # the directories in the same form, then the files
        forms = [(reader.uleb(), reader.uleb()) for _ in range(reader.number(1))]
        count = reader.uleb()
        if count and not forms:
            raise ValueError  # entries of no bytes could be any number
        names = [_read_file_name(reader, offset_size, forms) for _ in range(count)]
    return names


def _read_file_name(reader: _Reader, offset_size: int, forms: list[tuple[int, int]]) -> TextPlace:
    """Return the name in an entry of version 5. `forms`: DW_LNCT and DW_FORM of each field."""
    name = (".debug_line", len(reader.bytes))
    for content_type, form in forms:
        if form == STRING:
            text = (".debug_line", reader.skip_text())
        elif form in STRING_SECTIONS:
            text = STRING_SECTIONS[form], reader.number(offset_size)
        elif form in FORM_SIZES:
            reader.skip(FORM_SIZES[form])
        elif form == BLOCK:
            reader.skip(reader.uleb())
        elif form == UDATA:
            reader.uleb()
        else:
            raise ValueError
        if content_type == PATH and (form == STRING or form in STRING_SECTIONS):
            name = text
    return name
