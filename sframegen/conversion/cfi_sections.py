"""Finds the sections with a file's call frame information (CFI): `.eh_frame`, and `.debug_frame`, also in a separate debug file."""

from __future__ import annotations

import zlib
from functools import cache, partial
from pathlib import Path

from cfi.machine import Cursor
from cfi.section import CfiSection
from sframegen.base.errors import FormatError
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.conversion.kernel_code import find_unwalked_code
from sframegen.elf.dynamic import DF_TEXTREL, DT, read_dynamic
from sframegen.elf.file import ElfFile, Relocated, Section, open_elf
from sframegen.elf.notes import read_build_id, read_debug_link
from sframegen.elf.records import ADDRESS_SPACE, EH_FRAMES, ET, PF, PT, RECORDS, SHF, SHN, SHT, SYM_SIZE, Sym
from sframegen.elf.relocations import unpack_columns
from sframegen.format.abi import ABSOLUTE_64, abi_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeAlias

    from sframegen.elf.ranges import Range

    Bases: TypeAlias = tuple[int, int, Callable[[int], int]]

DW_EH_PE_OMIT = 0xFF
UNREAD_TABLES = {DT.REL, DT.ANDROID_REL, DT.ANDROID_RELA}  # tables of dynamic relocations that sframegen does not read
CRC_CHUNK = 1 << 20


class Sources(NamedTuple):
    """The CFI sections of a file, in order of precedence, and the size of `.eh_frame_hdr`, which users compare with `.sframe`.

    `floating`: code of an object that a linker can place at any address modulo PC_PERIOD. `unwalked`: code of a kernel that its
    unwinder does not look up, so that its functions are left out.
    """

    sections: list[CfiSection]
    eh_frame_hdr_bytes: int
    required: int  # number of sections, from the first on, that must be readable; for others that are not, there is a warning
    warnings: list[str]
    floating: Sequence[Range] = ()
    unwalked: Sequence[Range] = ()


def find_sources(
    elf: ElfFile, debug_file: Path | None = None, lay_out: Callable[[ElfFile], ElfFile] = lambda debug: debug
) -> Sources:
    """Find `.eh_frame`, then `.debug_frame` of the file itself, then that of its debug file (a file, or a directory to search).

    `lay_out`: gives a debug file the addresses of `elf`; the debug file of an object needs this, as its sections have none.

    Raises FormatError if a required section cannot be read, or `debug_file` has no .debug_frame or is not for this file.
    """
    sections = _find_sections_named(elf, *EH_FRAMES) if elf.sections else _find_eh_frame_by_segment(elf)
    required = len(sections)
    warnings: list[str] = []
    try:
        sections += _find_debug_frames(elf)
    except FormatError as error:
        if not sections:
            raise
        warnings.append(f"{error}; not used")
    if debug_file is not None:
        debug_frames = _find_debug_frames(lay_out(_open_debug_file(elf, debug_file)))
        if not debug_frames:
            raise elf.error(f"{debug_file} has no .debug_frame")
        sections += debug_frames
    if debug_file is not None or not required:
        required = len(sections)
    header = elf.section(".eh_frame_hdr")
    size = header.header.sh_size if header else sum(s.p_filesz for s in elf.segments if s.p_type == PT.GNU_EH_FRAME)
    return Sources(sections, size, required, warnings, elf.floating, find_unwalked_code(elf))


def _find_sections_named(elf: ElfFile, *names: str) -> list[CfiSection]:
    """Return the sections with these names that have bytes in the file; in debug files, most have none."""
    sections = [
        section
        for section in elf.sections
        if section.name in names and section.header.sh_type != SHT.NOBITS and section.header.sh_size
    ]
    if sum(section.header.sh_size for section in sections) > len(elf.data):
        raise elf.error(f"{len(sections)} sections of that name overlap", names[0])
    bases = _find_pointer_bases(elf)
    return [_make_cfi_section(elf, section, bases)._replace(continues=number > 0) for number, section in enumerate(sections)]


def _make_cfi_section(elf: ElfFile, section: Section, bases: Bases) -> CfiSection:
    is_eh_frame, address = section.name in EH_FRAMES, section.header.sh_addr
    cfi = CfiSection(section.name, elf.contents(section), address, elf.byte_order, is_eh_frame, *bases)
    if elf.relocated is not None:
        fields = elf.relocated.get(section.number, Relocated(set(), set()))
        return cfi._replace(has_known_pointer=fields.filled.__contains__, unknown_fields=fields.unknown)
    return _apply_dynamic_relocations(elf, cfi, section.header.sh_flags & SHF.WRITE) if is_eh_frame else cfi


def _apply_dynamic_relocations(elf: ElfFile, section: CfiSection, writable: int) -> CfiSection:
    """Return the section as the loader relocates it, because absolute pointers in position-independent files need that."""
    tags = _read_dynamic_tags(elf)
    if not (writable or DT.TEXTREL in tags or tags.get(DT.FLAGS, 0) & DF_TEXTREL):
        return section
    if UNREAD_TABLES & tags.keys():
        return section._replace(has_known_pointer=lambda _: False)
    words = _read_relocated_words(elf, section.address, section.address + len(section.data))
    if not words:
        return section
    data = bytearray(section.data)
    for address, value in words.items():
        offset = address - section.address
        if value is not None and offset + 8 <= len(data):
            data[offset : offset + 8] = value.to_bytes(8, elf.byte_order)
    unknown = [address - section.address for address, value in words.items() if value is None]

    def has_known_pointer(offset: int) -> bool:
        return words.get(section.address + offset, 0) is not None

    return section._replace(data=data, has_known_pointer=has_known_pointer, unknown_fields=unknown)


def _read_relocated_words(elf: ElfFile, start: int = 0, end: int = ADDRESS_SPACE) -> dict[int, int | None]:
    """Map addresses in [start, end) to the 8-byte value that the loader writes there, minus the load bias; None if unknown."""
    tags = _read_dynamic_tags(elf)
    if DT.RELA not in tags or DT.RELASZ not in tags:
        return {}
    abi = abi_of(elf)
    words: dict[int, int | None] = {}
    for address, info, addend in zip(*unpack_columns(elf.at(tags[DT.RELA], tags[DT.RELASZ]), elf.byte_order), strict=True):
        if start <= address < end:
            value = 0 if info == abi.relative else None
            if abi.relocations.get(info & 0xFFFFFFFF) == ABSOLUTE_64:
                symbol_address = tags.get(DT.SYMTAB, 0) + (info >> 32) * SYM_SIZE
                symbol = Sym(*RECORDS[Sym, elf.byte_order].unpack(elf.at(symbol_address, SYM_SIZE)))
                value = symbol.st_value if symbol.st_shndx != SHN.UNDEF else None
            words[address] = None if value is None else (value + addend) % ADDRESS_SPACE
    return words


def _read_dynamic_tags(elf: ElfFile) -> dict[int, int]:
    return {entry.tag: entry.value for entry in read_dynamic(elf)} if elf.header.e_type == ET.DYN else {}


def _find_pointer_bases(elf: ElfFile) -> Bases:
    """Return what encoded pointers may be relative to: the addresses of .text and .got, and a reader of indirect pointers."""
    text, got = elf.section(".text"), elf.section(".got")
    loaded_words = cache(partial(_read_relocated_words, elf))  # read on demand: few files have indirect pointers

    def read_loaded_word(address: int) -> int:
        value = loaded_words().get(address, -1)
        if value is None:
            raise elf.error("it is not known what the loader writes there", offset=address)
        return value if value >= 0 else int.from_bytes(elf.at(address, 8), elf.byte_order)

    return text.header.sh_addr if text else 0, got.header.sh_addr if got else 0, read_loaded_word


def _find_eh_frame_by_segment(elf: ElfFile) -> list[CfiSection]:
    """Find .eh_frame without section headers, through PT_GNU_EH_FRAME and .eh_frame_hdr. Only its FDE count shows where it ends."""
    header = next((segment for segment in elf.segments if segment.p_type == PT.GNU_EH_FRAME), None)
    if header is None:
        return []
    name = ".eh_frame_hdr"
    data = elf.slice(header.p_offset, header.p_filesz, name)
    cursor = Cursor(data, header.p_vaddr, elf.byte_order == "big", 0, header.p_vaddr, None)
    hdr_version, pointer_encoding, count_encoding, _ = (cursor.read_unsigned(1) for _ in range(4))
    address = cursor.read_pointer(pointer_encoding)
    count = cursor.read_pointer(count_encoding) if count_encoding != DW_EH_PE_OMIT else 0
    if cursor.fault or hdr_version != 1:
        raise FormatError(f"version {hdr_version}, or its pointers are cut off", name, 0, elf.name)
    for segment in elf.segments:
        if segment.p_type == PT.LOAD and segment.p_vaddr <= address < segment.p_vaddr + segment.p_filesz:
            data = elf.at(address, segment.p_vaddr + segment.p_filesz - address)
            fdes = min(count, len(data))  # a hostile count may not fit into the compiled reader's numbers
            section = CfiSection(".eh_frame", data, address, elf.byte_order, True, *_find_pointer_bases(elf), fde_count=fdes)
            return [_apply_dynamic_relocations(elf, section, segment.p_flags & PF.W)]
    raise FormatError(f"leads to {address:#x}, which no segment maps", name, 4, elf.name)


def _find_debug_frames(elf: ElfFile) -> list[CfiSection]:
    return _find_sections_named(elf, ".debug_frame", ".zdebug_frame")


def has_debug_frame(elf: ElfFile, directory: Path) -> bool:
    """Return True if the directory has the file's debug file, with a .debug_frame. Raises FormatError if that file is damaged."""
    debug = _find_debug_file(elf, directory)
    return debug is not None and bool(_find_debug_frames(debug))


def _open_debug_file(elf: ElfFile, path: Path) -> ElfFile:
    debug = _find_debug_file(elf, path)
    if debug is None:
        kind = "not a regular file" if path.exists() else "no such file"
        raise elf.error(f"no debug file for it in {path}, by build-id or .gnu_debuglink" if path.is_dir() else f"{path}: {kind}")
    return debug


def _find_debug_file(elf: ElfFile, path: Path) -> ElfFile | None:
    """Return the debug file at `path`; in a directory, search by build-id and .gnu_debuglink as debuggers do."""
    for candidate in _list_candidate_paths(elf, path) if path.is_dir() else iter([path]):
        if candidate.is_file():
            debug = open_elf(candidate)
            if is_debug_file_of(elf, debug):
                return debug
            if not path.is_dir():
                raise elf.error(f"{path} is not its debug file: build-id or CRC differ")
    return None


def _list_candidate_paths(elf: ElfFile, directory: Path) -> Iterator[Path]:
    build_id, link = read_build_id(elf), read_debug_link(elf)
    if build_id:
        name = build_id.hex()
        for folder in (directory / ".build-id", directory):
            yield folder / name[:2] / f"{name[2:]}.debug"
    if link:
        for folder in (directory, directory / ".debug"):
            yield folder / Path(link[0]).name


def is_debug_file_of(elf: ElfFile, debug: ElfFile) -> bool:
    """Return True if `debug` is the debug file of `elf`: the build-ids are equal, or the CRC in .gnu_debuglink is that of `debug`.

    If `elf` has neither, the user's choice is trusted.
    """
    ours, theirs = read_build_id(elf), read_build_id(debug)
    if ours and theirs:
        return ours == theirs
    link = read_debug_link(elf)
    if link is None:
        return True
    crc = 0
    for offset in range(0, len(debug.data), CRC_CHUNK):
        crc = zlib.crc32(debug.data[offset : offset + CRC_CHUNK], crc)
    return crc == link[1]
