"""Reads notes, and a file's two links to its debug information: the build-id and the debug link."""

from __future__ import annotations

import os
from contextlib import suppress

from sframegen.base.errors import FormatError, name_file_in_errors
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.elf.records import NHDR_SIZE, NT_GNU_BUILD_ID, PT, RECORDS, SHT, ByteOrder, Nhdr

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sframegen.elf.file import ElfFile

MAX_NOTES_PER_BYTE = 3  # of a file: a note may be in a section, a segment for all notes, and one for properties


class Note(NamedTuple):
    """A note: its owner's name, type and description."""

    name: bytes
    type: int
    desc: bytes
    offset: int  # file offset of the note's header


def read_notes(elf: ElfFile) -> Iterator[Note]:
    """Yield every note of every PT_NOTE, or of SHT_NOTE sections if there is no PT_NOTE."""
    for place in find_note_ranges(elf):
        yield from read_notes_at(elf, *place)


def read_valid_notes(elf: ElfFile) -> Iterator[Note]:
    """Yield notes like `notes_of`, but end a place at bytes that are not a note, over which objcopy may leave a PT_NOTE."""
    for place in find_note_ranges(elf):
        with suppress(FormatError):
            yield from read_notes_at(elf, *place)


def find_note_ranges(elf: ElfFile) -> Iterable[tuple[int, int, int]]:
    """Return (file offset, size, alignment) of each note segment or section."""
    places = [(s.p_offset, s.p_filesz, s.p_align) for s in elf.segments if s.p_type == PT.NOTE] or [
        (s.header.sh_offset, s.header.sh_size, s.header.sh_addralign) for s in elf.sections if s.header.sh_type == SHT.NOTE
    ]
    check_note_sizes(elf)
    return dict.fromkeys(places)


def check_note_sizes(elf: ElfFile) -> None:
    """Raise FormatError if notes overlap more than linkers make them: overlapping notes would be read many times."""
    sizes = [s.p_filesz for s in elf.segments if s.p_type == PT.NOTE]
    sizes += [s.header.sh_size for s in elf.sections if s.header.sh_type == SHT.NOTE]
    if sum(sizes) > MAX_NOTES_PER_BYTE * len(elf.data):
        raise elf.error(f"{len(sizes)} segments and sections of notes overlap", "note")


def read_notes_at(elf: ElfFile, offset: int, size: int, align: int) -> Iterator[Note]:
    """Yield the notes of one section or segment."""
    with name_file_in_errors(elf.name):
        yield from parse_notes(elf.slice(offset, size, "note"), elf.byte_order, align, offset)


def parse_notes(raw: memoryview, byte_order: ByteOrder, align: int, offset: int = 0) -> Iterator[Note]:
    """Yield the notes in a section's or segment's bytes. `offset`: of these bytes in the file."""
    align = 8 if align == 8 else 4
    code = RECORDS[Nhdr, byte_order]
    pos = 0
    while pos + NHDR_SIZE <= len(raw):
        namesz, descsz, kind = code.unpack_from(raw, pos)
        desc = pos + (NHDR_SIZE + namesz + align - 1) // align * align
        if desc + descsz > len(raw):
            raise FormatError(f"note of {descsz} bytes reaches past its segment", "note", offset + pos)
        yield Note(
            bytes(raw[pos + NHDR_SIZE : pos + NHDR_SIZE + namesz]),
            kind,
            bytes(raw[desc : desc + descsz]),
            offset + pos,
        )
        pos = desc + (descsz + 3) // 4 * 4
        if pos % align and any(raw[pos : pos + 4]):  # mold 1 puts notes of 4-byte alignment after those of 8 bytes
            align = 4
        pos = (pos + align - 1) // align * align


def read_build_id(elf: ElfFile) -> bytes | None:
    return select_build_id(read_notes(elf))


def select_build_id(notes: Iterable[Note]) -> bytes | None:
    return next((note.desc for note in notes if note.type == NT_GNU_BUILD_ID and note.name == b"GNU\0"), None)


def read_debug_link(elf: ElfFile) -> tuple[str, int] | None:
    """Return (file name, CRC-32 of that file) from .gnu_debuglink."""
    section = elf.section(".gnu_debuglink")
    if section is None:
        return None
    raw = bytes(elf.contents(section))
    end = raw.find(b"\0")
    crc_at = (end + 4) & ~3
    if end <= 0 or crc_at + 4 > len(raw):
        raise elf.error("neither a file name nor its CRC", section.name)
    return os.fsdecode(raw[:end]), int.from_bytes(raw[crc_at : crc_at + 4], elf.byte_order)
