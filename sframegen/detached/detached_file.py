"""Writes and reads a detached section: a small ELF file with the SFrame section and the identity of the original file.

| part | |
| --- | --- |
| ELF header | the original's, except for the offsets and sizes of the tables |
| program headers | the original's PT_LOADs, which give its load layout; their bytes are left out |
| `.note.gnu.build-id` | the original's |
| `.sframe` | a section outside of all segments: SHT_GNU_SFRAME, address 0, without SHF_ALLOC |
| `.shstrtab`, section headers | for these sections |
"""

from __future__ import annotations

from enum import StrEnum

from sframegen.base.errors import FormatError
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.elf.file import ElfFile
from sframegen.elf.notes import read_build_id
from sframegen.elf.ranges import align_up
from sframegen.elf.records import EHDR_SIZE, NT_GNU_BUILD_ID, PHDR_SIZE, PN_XNUM, PT, SHDR_SIZE, SHF, SHT, Nhdr, Shdr, pack_records
from sframegen.format.locate import find_unloaded_section

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sframegen.base.columns import Bytes
    from sframegen.elf.records import ByteOrder, Ehdr, Phdr

MAX_BYTES = 1 << 28  # limit for a section; libxul's has 10 million bytes
ADDRESS = 0  # of a detached section: function starts in it are relative to address 0
ALIGN = 8
NOTE_ALIGN = 4
NOTE_OWNER = b"GNU\0"
NOTE, SECTION, NAMES = ".note.gnu.build-id", ".sframe", ".shstrtab"
BUILD_ID_BYTES = range(2, 65)  # linkers make 8 to 32 bytes; the first byte names a directory, the others a file


class Identity(NamedTuple):
    """The identity of a file: its build-id and load layout, because tools that change the layout of a file keep its build-id.

    `loads`: for each PT_LOAD its flags, offset, address, and sizes in the file and in memory.
    """

    build_id: bytes
    byte_order: ByteOrder
    file_type: int
    machine: int
    loads: tuple[tuple[int, ...], ...]


def identity_of(elf: ElfFile) -> Identity | None:
    """Return the identity of a file; None without a build-id of a usable size. Raises FormatError for damaged notes."""
    return make_identity(read_build_id(elf), elf.header, elf.byte_order, elf.segments)


def make_identity(build_id: bytes | None, header: Ehdr, byte_order: ByteOrder, segments: Iterable[Phdr]) -> Identity | None:
    """Make the identity of a file from its build-id and headers; None without a build-id of a usable size."""
    if build_id is None or len(build_id) not in BUILD_ID_BYTES:
        return None
    loads = tuple((s.p_flags, s.p_offset, s.p_vaddr, s.p_filesz, s.p_memsz) for s in segments if s.p_type == PT.LOAD)
    return Identity(build_id, byte_order, header.e_type, header.e_machine, loads)


def path_in_store(build_id: bytes) -> str:
    """Return the path of a section in a store: `.build-id/ab/cdef....sframe`, like the debug files of debuggers."""
    name = build_id.hex()
    return f".build-id/{name[:2]}/{name[2:]}.sframe"


def build_detached_file(elf: ElfFile, identity: Identity, section: Bytes) -> bytes:
    """Return the bytes of the detached file for `elf` with this section. Raises FormatError if it would be too large."""
    loads = [segment for segment in elf.segments if segment.p_type == PT.LOAD]
    if len(loads) >= PN_XNUM or len(section) > MAX_BYTES:
        raise elf.error(f"too large for a detached file: {len(section):,} bytes, {len(loads):,} segments", SECTION)
    order = elf.byte_order
    note = pack_records([Nhdr(len(NOTE_OWNER), len(identity.build_id), NT_GNU_BUILD_ID)], order) + NOTE_OWNER + identity.build_id
    note += bytes(-len(note) % NOTE_ALIGN)
    names = b"\0" + b"".join(f"{name}\0".encode() for name in (NOTE, SECTION, NAMES))
    note_at = EHDR_SIZE + len(loads) * PHDR_SIZE
    section_at = align_up(note_at + len(note), ALIGN)
    names_at = section_at + len(section)
    headers_at = align_up(names_at + len(names), ALIGN)
    headers = [
        Shdr(0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        Shdr(_offset_of_name(names, NOTE), SHT.NOTE, 0, 0, note_at, len(note), 0, 0, NOTE_ALIGN, 0),
        Shdr(_offset_of_name(names, SECTION), SHT.GNU_SFRAME, 0, ADDRESS, section_at, len(section), 0, 0, ALIGN, 0),
        Shdr(_offset_of_name(names, NAMES), SHT.STRTAB, 0, 0, names_at, len(names), 0, 0, 1, 0),
    ]
    header = elf.header._replace(
        e_phoff=EHDR_SIZE if loads else 0, e_phnum=len(loads), e_phentsize=PHDR_SIZE, e_ehsize=EHDR_SIZE,
        e_shoff=headers_at, e_shnum=len(headers), e_shentsize=SHDR_SIZE, e_shstrndx=len(headers) - 1,
    )  # fmt: skip
    note += bytes(section_at - note_at - len(note))  # padding, as below
    names += bytes(headers_at - names_at - len(names))
    return b"".join((pack_records([header], order), pack_records(loads, order), note, section, names, pack_records(headers, order)))


def read_section(data: memoryview, name: str, identity: Identity) -> memoryview:
    """Return the uncompressed section from the bytes of a detached file. Its address is ADDRESS.

    `name`: the detached file's, for messages. Raises FormatError if it is damaged, or made for a file of another identity.
    """
    elf = ElfFile(data, name)
    theirs = identity_of(elf)
    if theirs is None:
        raise FormatError("no build-id", file=name)
    if theirs != identity:
        difference = "build-id" if theirs.build_id != identity.build_id else "load layout"
        raise FormatError(f"for another file: its {difference} differs", file=name)
    section = find_unloaded_section(elf)
    if section is None or section.header.sh_addr != ADDRESS:
        raise FormatError("no detached SFrame section", file=name)
    if elf.contents_size(section) > MAX_BYTES:
        raise FormatError(f"{elf.contents_size(section):,} bytes are too many", section.name, file=name)
    return elf.contents(section)


class Companion(StrEnum):
    """The kind of a file that accompanies a program or library. The value is shown to users."""

    DEBUG_FILE = "a separate debug file"
    DETACHED_SECTION = "a detached section"


def companion_of(elf: ElfFile) -> Companion | None:
    """Return the kind of companion file that `elf` is; None for a program or library.

    A debug file has code sections without bytes; the file of a detached section does not have any code sections.
    """
    code = {section.header.sh_type for section in elf.sections if section.header.sh_flags & SHF.EXECINSTR}
    if code == {SHT.NOBITS}:
        return Companion.DEBUG_FILE
    section = None if code else find_unloaded_section(elf)
    return None if section is None or section.header.sh_addr != ADDRESS else Companion.DETACHED_SECTION


def is_detached(elf: ElfFile) -> bool:
    return companion_of(elf) is Companion.DETACHED_SECTION


def _offset_of_name(names: bytes, name: str) -> int:
    return names.index(f"{name}\0".encode())
