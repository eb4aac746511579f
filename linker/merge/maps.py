"""Reads map files (`-Map`) of GNU ld, gold, lld and mold, which list where a link placed the sections of its inputs.

lld and mold write rows of columns. The last one is a name: of an output section, or indented below it, FILE:(SECTION) of an input
section, or indented further, a symbol. GNU ld and gold write lines of fields, and break them after a long section name:

    .text           0x0000000000401000      0x1b5
     .text          0x0000000000401000       0x26 crt1.o
     .text.a_long_name
                    0x0000000000401030       0x10 a.o
                    0x0000000000401030                a_symbol
"""

from __future__ import annotations

import os
import re

from sframegen.base.errors import FormatError
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple, NoReturn, Self, TextIO, TypeAlias
from sframegen.elf.file import open_text
from sframegen.elf.records import ADDRESS_SPACE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    # A predicate for the name, address and size of an output section: True if it may have code.
    HasCode: TypeAlias = Callable[[str, int, int], bool]

MAX_LINE = 1 << 20  # characters, because even symbols of C++ have at most some ten thousand
BLOCK = 1 << 16  # characters to read at a time
MAX_FROM_PIPE = 1 << 28  # bytes, because text from a pipe is kept in memory

# Maps of lld and mold.
INDENT, SYMBOL_INDENT = " " * 8, " " * 16  # of input sections and symbols in the column of names
NOT_A_FILE = {"<internal>", "linker stubs", ""}  # names for sections that the linker made, or "" for a linker script's statement
PIECE_OF_EH_FRAME = ".eh_frame+0x"  # begins the name of a CIE or FDE, which lld lists like sections

# Maps of GNU ld and gold.
ADDRESS_INDENT = " " * 16  # of the rest of a line that is broken after a name of more than 14 characters
NAME_ADDRESS_SIZE = r"(?P<name>\S.*?) 0x(?P<address>[0-9a-f]{1,16}) +0x(?P<size>[0-9a-f]{1,16})"
GNU_INPUT = re.compile(rf" {NAME_ADDRESS_SIZE} (?P<file>.+)")
GNU_OUTPUT = re.compile(rf"{NAME_ADDRESS_SIZE}(?: .*)?")
GNU_ADDRESS = re.compile(r" 0x[0-9a-f]{16}")
GNU_DATA = re.compile(r"(?:BYTE|SHORT|LONG|S?QUAD|RELOC) ")  # data of a linker script, where other lines name a file
PATTERN_MARK = "("  # occurs in a linker script's patterns, such as "*(.text)"
GNU_NO_SECTION = (" *fill*", " ** ", " FILL mask ", " CREATE_OBJECT_SYMBOLS", " CONSTRUCTORS")
# Lines to skip, which are the majority: symbols, and sections of 0 bytes, whose names may be on a line of their own. Within output
# sections without code, also input sections of any size.
GNU_SKIPPED = re.compile(r"(?: {16}.*\n| \*fill\*.*\n| (?!0x)\S+(?: +|\n {16})0x[0-9a-f]{1,16} +0x0 .+\n)+")
GNU_SKIPPED_WITHOUT_CODE = re.compile(
    r"(?: {16}.*\n| \*fill\*.*\n| (?!0x)\S+(?: +|\n {16})0x[0-9a-f]{1,16} +0x[0-9a-f]{1,16} .+\n)+"
)
GNU_BEGIN = re.compile(r"\*default\* +0x[0-9a-f]+ +0x[0-9a-f]+")  # ends the memory regions, whatever the language of the headings
GOLD_BEGIN, GOLD_FINAL = "Memory map", " ** file header"


class Placement(NamedTuple):
    """The placement of an input section in the output of a link."""

    file: str  # the file's name in the map, such as "a.o", or "/usr/lib/libx.a" for a member of an archive
    member: str  # the archive member's name, such as "member.o", else ""
    section: str
    address: int  # absolute, or with `-r` an offset in the output section
    size: int
    output: str  # name of the output section
    output_number: int  # the output section's number in the map, which distinguishes sections of one name


class _MapLines:
    """An iterator over the lines of a map, without line ends, that counts them for error messages."""

    def __init__(self, stream: TextIO, file: str) -> None:
        self.stream = stream
        self.file = file
        self.number = 0
        self._block = ""  # text that was read; the next line begins at `_at`, and the last one may be incomplete
        self._at = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        end = self._block.find("\n", self._at)
        while end < 0 and len(self._block) - self._at < MAX_LINE:
            next_block = self.stream.read(BLOCK)
            if not next_block:
                break
            searched = len(self._block) - self._at
            self._block, self._at = self._block[self._at :] + next_block, 0
            end = self._block.find("\n", searched)
        if self._at == len(self._block):
            raise StopIteration
        self.number += 1
        if not 0 <= end < self._at + MAX_LINE:
            raise self.error("too long" if len(self._block) - self._at >= MAX_LINE else "cut off, or this is not a map")
        line = self._block[self._at : end]
        self._at = end + 1
        return line

    def skip_matching(self, lines: re.Pattern[str]) -> None:
        """Skip the next lines that the pattern matches, as far as they have been read from the file."""
        match = lines.match(self._block, self._at)
        if match:
            self.number += self._block.count("\n", self._at, match.end())
            self._at = match.end()

    def error(self, message: str, number: int = 0) -> FormatError:
        return FormatError(message, f"line {number or self.number}", file=self.file)

    def raise_unknown_line(self, line: str, number: int = 0) -> NoReturn:
        raise self.error(f"not what a linker writes: {line[:80]!r}", number)

    def make_placement(self, file: str, section: str, address: int, size: int, output: str, number: int) -> Placement:
        if address + size > ADDRESS_SPACE:
            raise self.error(f"{size:#x} bytes at {address:#x} do not fit into the address space")
        return Placement(*split_member(file), section, address, size, output, number)


def read_map(path: str | os.PathLike[str], has_code: HasCode = lambda *_: True) -> Iterator[Placement]:
    """Yield every nonempty input section in the output, in the map's order, without sections that the linker made.

    `has_code`: returns whether an output section (name, address, size) may have code; of others, most input sections are left
    out, for speed. Sections that the link dropped or folded are missing, and so is an .eh_frame that the linker rewrites. GNU ld
    2.40 attributes some of its own sections (.plt, .got) to an input file. Paths are as the linker writes them: mold shortens
    them, and only GNU ld has the path of a thin archive's member. Raises FormatError, which names the line.
    """
    with open_text(path, MAX_FROM_PIPE, newline="\n") as stream:
        yield from _read_placements(_MapLines(stream, os.fsdecode(path)), has_code)


def split_member(name: str) -> tuple[str, str]:
    """Return (archive, member) for "archive(member)", (file, "") for other names. "a(1)" counts as an archive's member."""
    if not name.endswith(")"):
        return name, ""
    depth = 0
    for at in range(len(name) - 1, 0, -1):
        depth += (name[at] == ")") - (name[at] == "(")
        if depth == 0:
            return name[:at], name[at + 1 : -1]
    return name, ""


class ColumnFormat(NamedTuple):
    """The form of a map with columns. Each field except the last is a regular expression."""

    first_line: str
    row: str  # groups: address, size, name
    skipped: str  # rows to skip: symbols and empty input sections
    skipped_without_code: str  # rows to skip in output sections without code: symbols and all input sections
    size_base: int  # the base of the numbers in the column of sizes


MOLD = ColumnFormat(
    r" +VMA +LMA +Size +Align +Out +In +Symbol",
    r" *([0-9a-f]{1,16}) +[0-9a-f]{1,16} +([0-9a-f]{1,16}) +[0-9]{1,20} (.*)",
    r"(?: *[0-9a-f]{1,16} +[0-9a-f]{1,16} +(?:0 +[0-9]{1,20} {9}|[0-9a-f]{1,16} +[0-9]{1,20} {17}).*\n)+",
    r"(?: *[0-9a-f]{1,16} +[0-9a-f]{1,16} +[0-9a-f]{1,16} +[0-9]{1,20} {9}.*\n)+",
    size_base=16,
)
LLD = ColumnFormat(
    r" +VMA +Size +Align +Out +In +Symbol",
    r" *(0|0x[0-9a-f]{1,16}) +([0-9]{1,20}) +[0-9]{1,20} (.*)",
    r"(?: *(?:0|0x[0-9a-f]{1,16}) +(?:0 +[0-9]{1,20} {9}|[0-9]{1,20} +[0-9]{1,20} {17}).*\n)+",
    r"(?: *(?:0|0x[0-9a-f]{1,16}) +[0-9]{1,20} +[0-9]{1,20} {9}.*\n)+",
    size_base=10,
)


def _read_placements(lines: _MapLines, has_code: HasCode) -> Iterator[Placement]:
    first_line = next(lines, "")
    for columns in (MOLD, LLD):
        if re.fullmatch(columns.first_line, first_line):
            yield from _read_columns(lines, has_code, columns)
            return
    for line in lines:
        if GNU_BEGIN.fullmatch(line) or line == GOLD_BEGIN:
            yield from _read_gnu(lines, has_code, needs_header=line == GOLD_BEGIN)
            return
    raise FormatError("not a map of GNU ld, gold, lld or mold", file=lines.file)


def _read_columns(lines: _MapLines, has_code: HasCode, columns: ColumnFormat) -> Iterator[Placement]:
    """Read the map of lld or mold."""
    row = re.compile(columns.row)
    skipped = skipped_with_code = re.compile(columns.skipped)
    skipped_without_code = re.compile(columns.skipped_without_code)
    output, number = "", -1
    for line in lines:
        fields = row.fullmatch(line)
        if fields is None:
            if not line:  # lld's table of cross references follows
                return
            lines.raise_unknown_line(line)
        address, size, name = fields.groups()
        if name.startswith(SYMBOL_INDENT):
            continue
        if not name.startswith(INDENT):
            output, number = name, number + 1
            is_code = has_code(name, int(address, 16), int(size, columns.size_base))
            skipped = skipped_with_code if is_code else skipped_without_code
            lines.skip_matching(skipped)
            continue
        if not name.endswith(")"):  # a linker script's statement
            continue
        file, _, section = name[len(INDENT) : -1].rpartition(":(")
        size_bytes = int(size, columns.size_base)
        if size_bytes and file not in NOT_A_FILE and not section.startswith(PIECE_OF_EH_FRAME):
            yield lines.make_placement(file, section, int(address, 16), size_bytes, output, number)
        lines.skip_matching(skipped)


def _read_gnu(lines: _MapLines, has_code: HasCode, *, needs_header: bool) -> Iterator[Placement]:
    """Read the map of GNU ld or gold. `needs_header`: the first line has to show that gold made a final link."""
    output: str | None = None  # None: the link did not create this output section
    number = -1
    skipped = GNU_SKIPPED
    broken_line = ""  # the previous line, if the next one may continue it
    for text in lines:
        line = text
        if needs_header and line:
            if line != GOLD_FINAL:
                raise lines.error("gold's maps of -r links do not name input sections")
            needs_header = False
        before, broken_line = broken_line, ""
        is_joined = bool(before) and line.startswith(ADDRESS_INDENT + "0x")
        if is_joined:
            line = before + line[len(ADDRESS_INDENT) - 1 :]
        elif _lacks_address(before):
            lines.raise_unknown_line(before, lines.number - 1)
        elif line.startswith(ADDRESS_INDENT):  # a symbol, or a linker script's statement
            continue
        if not line.startswith(" "):
            fields = GNU_OUTPUT.fullmatch(line)
            output, skipped = None, GNU_SKIPPED
            if fields:
                output, number = fields["name"].rstrip(), number + 1
                if not has_code(output, int(fields["address"], 16), int(fields["size"], 16)):
                    skipped = GNU_SKIPPED_WITHOUT_CODE
        elif line.startswith(GNU_NO_SECTION):
            continue
        else:
            fields = GNU_INPUT.fullmatch(line)
            if fields is None:
                address = None if is_joined else GNU_ADDRESS.search(line)
                name = line[: address.start()] if address else before
                if (is_joined or address) and PATTERN_MARK not in name:  # a section with an address, but without a file
                    lines.raise_unknown_line(line)
            elif output is not None and not GNU_DATA.match(file := fields["file"]) and file not in NOT_A_FILE:
                size = int(fields["size"], 16)
                if size:
                    yield lines.make_placement(file, fields["name"].rstrip(), int(fields["address"], 16), size, output, number)
        if fields is None and not is_joined:
            broken_line = line
        elif not needs_header:
            lines.skip_matching(skipped)
    if _lacks_address(broken_line):
        lines.raise_unknown_line(broken_line)


def _lacks_address(line: str) -> bool:
    """Return True if the line can only be an input section's name, but its address and size are missing."""
    return line.startswith(" ") and PATTERN_MARK not in line
