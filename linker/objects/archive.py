"""Reads object archives (`ar`), and rewrites them with new contents for some members and a corrected symbol index."""

from __future__ import annotations

import struct

from sframegen.base.errors import FormatError
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAGIC, THIN_MAGIC = b"!<arch>\n", b"!<thin>\n"
DEBIAN_MAGIC = MAGIC + b"debian-binary"  # the name of a Debian package's first member
HEADER = struct.Struct("16s32s10s2s")  # name; date, owner, group, mode; decimal size (all padded with spaces); HEADER_END
HEADER_END = b"`\n"
# Name of a symbol index -> width of its big-endian numbers, which are the symbol count, and the offset of each symbol's member.
INDEXES = {b"/": 4, b"/SYM64/": 8}
LONG_NAMES = b"//"
BSD_INDEX = b"__.SYMDEF"
MAX_NAME = 4096  # bytes, the longest path; without a limit, many members could share one very long name


class Member(NamedTuple):
    """A member of an archive. `at`: the offset of its header in the archive."""

    at: int
    name: str
    fields: tuple[bytes, ...]  # the header, as HEADER unpacks it
    contents: memoryview

    @property
    def short_name(self) -> bytes:
        return self.fields[0].rstrip()

    @property
    def is_elf(self) -> bool:
        return self.short_name not in (*INDEXES, LONG_NAMES) and bytes(self.contents[:4]) == b"\x7fELF"


def is_archive(data: bytes | memoryview) -> bool:
    return bytes(data[:8]) in (MAGIC, THIN_MAGIC)


def is_debian_package(data: bytes | memoryview) -> bool:
    return bytes(data[: len(DEBIAN_MAGIC)]) == DEBIAN_MAGIC


def read_members(data: memoryview, file: str) -> list[Member]:
    """Read all members, including the symbol index and the table of long names. Raises FormatError."""
    if bytes(data[:8]) == THIN_MAGIC:
        raise FormatError("a thin archive: its members are files of their own, give them instead", file=file)
    result: list[Member] = []
    long_names = b""
    at = len(MAGIC)
    while at < len(data):
        if len(data) - at < HEADER.size:
            raise FormatError(f"expected {HEADER.size} bytes of member header, have {len(data) - at}", "archive", at, file)
        name, _, size, end = fields = HEADER.unpack_from(data, at)
        digits = size.strip()
        if end != HEADER_END or not digits.isdigit() or int(digits) > len(data) - at - HEADER.size:
            raise FormatError("not the header of a member, or one that is cut off", "archive", at, file)
        contents = data[at + HEADER.size : at + HEADER.size + int(digits)]
        short = name.rstrip()
        if short.startswith((BSD_INDEX, b"#1/")):
            raise FormatError("an archive in BSD's format is not rewritten", "archive", at, file)
        if short == LONG_NAMES:
            long_names = bytes(contents)
        result.append(Member(at, _member_name(short, long_names), fields, contents))
        at += HEADER.size + (int(digits) + 1) // 2 * 2
    return result


def rewrite_archive(members: list[Member], contents: Mapping[int, bytes | memoryview], file: str) -> Iterator[bytes | memoryview]:
    """Yield the new archive's bytes in parts. `contents`: new contents of some members, by the offset of their header."""
    sizes = {member.at: len(contents.get(member.at, member.contents)) for member in members}
    new_offsets: dict[int, int] = {}
    at = len(MAGIC)
    for member in members:
        new_offsets[member.at] = at
        at += HEADER.size + (sizes[member.at] + 1) // 2 * 2
    yield MAGIC
    for member in members:
        width = INDEXES.get(member.short_name)
        new = contents.get(member.at, member.contents) if width is None else _update_index(member, width, new_offsets, file)
        name, others, size, end = member.fields
        yield HEADER.pack(name, others, str(sizes[member.at]).encode().ljust(len(size)), end)
        yield new
        if len(new) % 2:
            yield b"\n"


def _member_name(short: bytes, long_names: bytes) -> str:
    """Return a member's name from its header, or from the table of long names if the header has `/` and an offset there."""
    if short[:1] == b"/" and short[1:].isdigit():
        at = int(short[1:])
        short = long_names[at : at + MAX_NAME].partition(b"\n")[0]
    return short.rstrip(b"/").decode(errors="replace") if short.strip(b"/") else short.decode()


def _update_index(index: Member, width: int, new_offsets: Mapping[int, int], file: str) -> bytes:
    """Return the symbol index with the members' new offsets. `new_offsets`: new header offset by old one."""
    raw = bytes(index.contents)
    count = int.from_bytes(raw[:width], "big")
    if width * (count + 1) > len(raw):
        raise FormatError(f"an index of {count} symbols does not fit into {len(raw)} bytes", "archive", index.at, file)
    offsets_struct = struct.Struct(f">{count}{'I' if width == 4 else 'Q'}")
    try:
        offsets = [new_offsets[at] for at in offsets_struct.unpack_from(raw, width)]
    except KeyError as error:
        raise FormatError(f"the symbol index leads to {error.args[0]:#x}, where no member is", "archive", index.at, file) from None
    if width == 4 and max(offsets, default=0) > 0xFFFFFFFF:
        raise FormatError("with its new sections it is too large for its symbol index", "archive", index.at, file)
    return raw[:width] + offsets_struct.pack(*offsets) + raw[width * (count + 1) :]
