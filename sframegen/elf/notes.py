"""Reads ELF notes, and the two links from a file to its debug information: the build-id and .gnu_debuglink."""

from __future__ import annotations

import os
from contextlib import suppress

from sframegen.base.errors import FormatError, name_file_in_errors
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.elf.records import NHDR_SIZE, NT_GNU_BUILD_ID, PT, RECORDS, SHT, ByteOrder, Nhdr

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sframegen.elf.file import ElfFile

MAX_NOTES_PER_BYTE = 3  # bytes of notes per byte of the file: a note may be in a section, in PT_NOTE and in another segment


class Note(NamedTuple):
    """A note: the name of its owner, its type and its description."""

    name: bytes
    type: int
    desc: bytes
    offset: int  # file offset of the note's header


def read_notes(elf: ElfFile) -> Iterator[Note]:
    """Yield every note of every PT_NOTE, or of SHT_NOTE sections if there is no PT_NOTE."""
    for offset, size, align in find_note_ranges(elf):
        yield from read_notes_at(elf, offset, size, align)


def read_valid_notes(elf: ElfFile) -> Iterator[Note]:
    """Yield notes like `read_notes`, but skip the rest of a range after bytes that are not a note: objcopy leaves such ranges."""
    for offset, size, align in find_note_ranges(elf):
        with suppress(FormatError):
            yield from read_notes_at(elf, offset, size, align)


def find_note_ranges(elf: ElfFile) -> Iterable[tuple[int, int, int]]:
    """Return the (file offset, size, alignment) of each note segment or, without one, of each note section."""
    ranges = [(s.p_offset, s.p_filesz, s.p_align) for s in elf.segments if s.p_type == PT.NOTE] or [
        (s.header.sh_offset, s.header.sh_size, s.header.sh_addralign) for s in elf.sections if s.header.sh_type == SHT.NOTE
    ]
    check_note_sizes(elf)
    return dict.fromkeys(ranges)


def check_note_sizes(elf: ElfFile) -> None:
    """Raise FormatError if notes overlap more than in files of linkers, because overlapping notes would be read many times."""
    sizes = [s.p_filesz for s in elf.segments if s.p_type == PT.NOTE]
    sizes += [s.header.sh_size for s in elf.sections if s.header.sh_type == SHT.NOTE]
    if sum(sizes) > MAX_NOTES_PER_BYTE * len(elf.data):
        raise elf.error(f"{len(sizes)} segments and sections of notes overlap", "note")


def read_notes_at(elf: ElfFile, offset: int, size: int, align: int) -> Iterator[Note]:
    """Yield the notes in a range of the file."""
    with name_file_in_errors(elf.name):
        yield from parse_notes(elf.slice(offset, size, "note"), elf.byte_order, align, offset)


def parse_notes(raw: memoryview, byte_order: ByteOrder, align: int, offset: int = 0) -> Iterator[Note]:
    """Yield the notes in `raw`, the bytes of a section or segment at file offset `offset`."""
    align = 8 if align == 8 else 4
    code = RECORDS[Nhdr, byte_order]
    pos = 0
    while pos + NHDR_SIZE <= len(raw):
        namesz, descsz, kind = code.unpack_from(raw, pos)
        desc = pos + (NHDR_SIZE + namesz + align - 1) // align * align
        if desc + descsz > len(raw):
            raise FormatError(f"note of {descsz} bytes reaches past its segment", "note", offset + pos)
        name = bytes(raw[pos + NHDR_SIZE : pos + NHDR_SIZE + namesz])
        yield Note(name, kind, bytes(raw[desc : desc + descsz]), offset + pos)
        pos = desc + (descsz + 3) // 4 * 4
        if pos % align and any(raw[pos : pos + 4]):  # mold 1 puts notes with 4-byte alignment after notes with 8-byte alignment
            align = 4
        pos = (pos + align - 1) // align * align


def read_build_id(elf: ElfFile) -> bytes | None:
    return select_build_id(read_notes(elf))


def select_build_id(notes: Iterable[Note]) -> bytes | None:
    """Return the description of the first build-id note."""
    return next((note.desc for note in notes if note.type == NT_GNU_BUILD_ID and note.name == b"GNU\0"), None)


def read_debug_link(elf: ElfFile) -> tuple[str, int] | None:
    """Return the (file name, CRC-32) of the debug file that .gnu_debuglink names; None without that section."""
    section = elf.section(".gnu_debuglink")
    if section is None:
        return None
    raw = bytes(elf.contents(section))
    end = raw.find(b"\0")
    crc_at = (end + 4) & ~3
    if end <= 0 or crc_at + 4 > len(raw):
        raise elf.error("neither a file name nor its CRC", section.name)
    return os.fsdecode(raw[:end]), int.from_bytes(raw[crc_at : crc_at + 4], elf.byte_order)
