"""Where a file's call frame information is: `.eh_frame`, `.debug_frame`, a separate debug file."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cfi.errors import FormatError
from cfi.machine import Cursor
from cfi.section import CfiSection
from sframegen.elf.file import open_elf
from sframegen.elf.notes import build_id_of, debug_link_of
from sframegen.elf.records import PT_GNU_EH_FRAME, PT_LOAD, SHT_NOBITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sframegen.elf.file import ElfFile, Section
    from sframegen.elf.ranges import Range

DW_EH_PE_OMIT = 0xFF
CRC_CHUNK = 1 << 20


class Sources(NamedTuple):
    """The sections to read, the first with precedence, and the sizes that a `.sframe` is measured by.

    `floating`: code of an object that a linker can place at any address modulo PC_PERIOD.
    """

    sections: list[CfiSection]
    eh_frame_hdr_bytes: int
    optional: str  # the name of a section that is only an addition: if it cannot be read, that is a warning
    warnings: list[str]
    floating: Sequence[Range] = ()


def find_sources(elf: ElfFile, debug_file: Path | None = None) -> Sources:
    """`.eh_frame` first, then `.debug_frame` of the file itself, then that of its debug file (a file, or a directory to search)."""
    sections = [section for section in [_eh_frame(elf)] if section]
    warnings: list[str] = []
    optional = ""
    try:
        own = _debug_frame(elf)
    except FormatError as error:
        if not sections:
            raise
        own = None
        warnings.append(f"{error}; not used")
    if own:
        optional = own.name if sections else ""
        sections.append(own)
    if debug_file is not None:
        section = _debug_frame(_open_debug_file(elf, debug_file))
        if section is None:
            raise elf.error(f"{debug_file} has no .debug_frame")
        sections.append(section)
        optional = ""
    header = elf.section(".eh_frame_hdr")
    size = header.header.sh_size if header else sum(s.p_filesz for s in elf.segments if s.p_type == PT_GNU_EH_FRAME)
    return Sources(sections, size, optional, warnings, elf.floating)


def _cfi_section(elf: ElfFile, section: Section, *, eh: bool) -> CfiSection:
    return CfiSection(section.name, elf.contents(section), section.header.sh_addr, elf.byte_order, eh, *_bases(elf))


def _bases(elf: ElfFile) -> tuple[int, int, Callable[[int], int]]:
    text, got = elf.section(".text"), elf.section(".got")
    return (
        text.header.sh_addr if text else 0,
        got.header.sh_addr if got else 0,
        lambda address: int.from_bytes(elf.at(address, 8), elf.byte_order),
    )


def _eh_frame(elf: ElfFile) -> CfiSection | None:
    section = elf.section(".eh_frame")
    if section is not None:
        if section.header.sh_type == SHT_NOBITS:  # a debug file: its .eh_frame is in the file it belongs to
            return None
        return _cfi_section(elf, section, eh=True) if section.header.sh_size else None
    return None if elf.sections else _eh_frame_by_segment(elf)


def _eh_frame_by_segment(elf: ElfFile) -> CfiSection | None:
    """Without section headers: PT_GNU_EH_FRAME leads to .eh_frame_hdr, that to .eh_frame, whose end only its FDE count shows."""
    header = next((segment for segment in elf.segments if segment.p_type == PT_GNU_EH_FRAME), None)
    if header is None:
        return None
    place = ".eh_frame_hdr"
    data = elf.slice(header.p_offset, header.p_filesz, place)
    cursor = Cursor(data, header.p_vaddr, elf.byte_order == "big", 0, header.p_vaddr, None)
    hdr_version, pointer_encoding, count_encoding, _ = (cursor.read_unsigned(1) for _ in range(4))
    address = cursor.read_pointer(pointer_encoding)
    count = cursor.read_pointer(count_encoding) if count_encoding != DW_EH_PE_OMIT else 0
    if cursor.fault or hdr_version != 1:
        raise FormatError(f"version {hdr_version}, or its pointers are cut off", place, 0, elf.name)
    for segment in elf.segments:
        if segment.p_type == PT_LOAD and segment.p_vaddr <= address < segment.p_vaddr + segment.p_filesz:
            data = elf.at(address, segment.p_vaddr + segment.p_filesz - address)
            fdes = min(count, len(data))  # hostile ones do not fit into the compiled reader's numbers
            return CfiSection(".eh_frame", data, address, elf.byte_order, True, *_bases(elf), fde_count=fdes)
    raise FormatError(f"leads to {address:#x}, which no segment maps", place, 4, elf.name)


def _debug_frame(elf: ElfFile) -> CfiSection | None:
    section = elf.section(".debug_frame") or elf.section(".zdebug_frame")
    return _cfi_section(elf, section, eh=False) if section and section.header.sh_type != SHT_NOBITS else None


def has_debug_frame(elf: ElfFile, directory: Path) -> bool:
    """True if the directory has the file's separate debug file, with a .debug_frame. Raises FormatError if that is damaged."""
    debug = _find_debug_file(elf, directory)
    return debug is not None and _debug_frame(debug) is not None


def _open_debug_file(elf: ElfFile, path: Path) -> ElfFile:
    debug = _find_debug_file(elf, path)
    if debug is None:
        raise elf.error(f"no debug file for it in {path}" if path.is_dir() else f"{path}: no such file")
    return debug


def _find_debug_file(elf: ElfFile, path: Path) -> ElfFile | None:
    """The debug file at `path`, or in the directory `path`: by build-id or .gnu_debuglink, as debuggers find it."""
    for candidate in _candidates(elf, path) if path.is_dir() else iter([path]):
        if candidate.is_file():
            debug = open_elf(candidate)
            if belongs(elf, debug):
                return debug
            if not path.is_dir():
                raise elf.error(f"{path} is not its debug file: build-id or CRC differ")
    return None


def _candidates(elf: ElfFile, directory: Path) -> Iterator[Path]:
    build_id, link = build_id_of(elf), debug_link_of(elf)
    if build_id:
        name = build_id.hex()
        for folder in (directory / ".build-id", directory):
            yield folder / name[:2] / f"{name[2:]}.debug"
    if link:
        for folder in (directory, directory / ".debug"):
            yield folder / Path(link[0]).name


def belongs(elf: ElfFile, debug: ElfFile) -> bool:
    """Same build-id; without one in either file, the CRC that .gnu_debuglink names; without that too, the user's word."""
    ours, theirs = build_id_of(elf), build_id_of(debug)
    if ours and theirs:
        return ours == theirs
    link = debug_link_of(elf)
    if link is None:
        return True
    crc = 0
    for offset in range(0, len(debug.data), CRC_CHUNK):
        crc = zlib.crc32(debug.data[offset : offset + CRC_CHUNK], crc)
    return crc == link[1]
