"""Reads the properties of a linked file that decide where a section fits, such as its last address, or refuses it with a reason."""

from __future__ import annotations

from linker.files.signatures import appended_signature_size
from linker.inject.movable import FIRST_PAGE, NEW_HEADERS, find_movable_and_fixed, is_valid_align
from sframegen.base.errors import Refusal, RefusedError
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.elf.dynamic import Dyn, Role, determine_role, read_dynamic
from sframegen.elf.notes import check_note_sizes, read_valid_notes
from sframegen.elf.ranges import Extent
from sframegen.elf.records import EHDR_SIZE, ET, NT_GNU_BUILD_ID, PHDR_SIZE, PT, SHDR_SIZE, SHF, SHT, Phdr

if TYPE_CHECKING:
    from sframegen.elf.file import ElfFile

SCAN_CHUNK = 1 << 20  # bytes
# First bytes -> the kind of data that may follow the image, after optional zeros, as in self-extracting programs and AppImages.
PAYLOADS = {
    b"PK\3\4": "a zip archive",
    b"hsqs": "a squashfs image, as in AppImages",
    b"DWARFS": "a DwarFS image, as in AppImages",
    b"\x1f\x8b": "gzip data",
    b"\xfd7zXZ": "xz data",
    b"\x28\xb5\x2f\xfd": "zstd data",
    b"7z\xbc\xaf": "a 7z archive",
}
MAX_ADDRESS = 1 << 63
MAX_ALIGN = 1 << 40
MAX_PROGRAM_HEADERS = 0x10000 // PHDR_SIZE  # a kernel starts no program whose table is larger than 64 KiB


class Image(NamedTuple):
    """A linked file to add a section to, with its ranges that are free, movable or fixed."""

    elf: ElfFile
    segments: list[Phdr]  # without the empty PT_GNU_SFRAME that objcopy --remove-section leaves
    loads: list[Phdr]
    page: int  # bytes: the largest p_align of the PT_LOADs, at least 4096; new segments are aligned to it
    end_address: int  # the first address after every PT_LOAD
    insertion_offset: int  # file offset for new bytes: after all bytes of segments, before sections that are not loaded
    align_after: int  # bytes: alignment of the sections after `insertion_offset`
    table: Extent  # the program header table
    table_load: Phdr | None  # the PT_LOAD that maps the table
    dynamic: list[Dyn]
    movable: list[Extent]  # ranges of metadata near the table that may move, because code cannot refer to them
    fixed: list[Extent]  # ranges that may not move
    build_id: Extent | None  # the build-id note, if it is in the first page
    role: Role

    @property
    def is_library(self) -> bool:
        """Return True if a dynamic loader maps the file. It reads the program header table from the file, not from memory."""
        return self.role in (Role.LIBRARY, Role.UNSURE)

    def has_build_id(self, piece: Extent) -> bool:
        """Return True if the build-id in the first page lies in this range."""
        return self.build_id is not None and piece.start <= self.build_id.start < piece.end


def read_image(elf: ElfFile) -> Image:
    """Read an image from a file. Raises FormatError or RefusedError with the reason if no section can be added to it."""
    check_header(elf, NEW_HEADERS)
    loads = check_loads(elf)
    check_sections(elf)
    check_no_appended_data(elf)
    check_note_sizes(elf)
    dynamic = read_dynamic(elf)
    start = elf.header.e_phoff
    table = Extent(start, start + elf.phnum * PHDR_SIZE, ("program header table",))
    table_load = next((load for load in loads if load.p_offset <= start and table.end <= load.p_offset + load.p_filesz), None)
    movable, fixed = find_movable_and_fixed(elf, dynamic, table, table_load)
    unloaded = (s.header.sh_addralign for s in elf.sections if not s.header.sh_flags & SHF.ALLOC)
    return Image(
        elf=elf, segments=[segment for segment in elf.segments if segment.p_type != PT.GNU_SFRAME], loads=loads,
        page=max(0x1000, *(load.p_align for load in loads)), end_address=loads[-1].p_vaddr + loads[-1].p_memsz,
        insertion_offset=find_insertion_offset(elf), align_after=max([8, *filter(is_valid_align, unloaded)]), table=table,
        table_load=table_load, dynamic=dynamic, movable=movable, fixed=fixed, build_id=find_build_id(elf),
        role=determine_role(elf, dynamic),
    )  # fmt: skip


def find_insertion_offset(elf: ElfFile) -> int:
    """Return the file offset after all bytes of segments, or the file's end if that offset would cut through a section."""
    ends = [s.p_offset + s.p_filesz for s in elf.segments if s.p_filesz]
    offset = max([EHDR_SIZE, elf.header.e_phoff + elf.phnum * PHDR_SIZE, *ends])
    tables = [(elf.header.e_shoff, elf.shnum * SHDR_SIZE)]
    headers = [s.header for s in elf.sections if s.header.sh_type not in (SHT.NULL, SHT.NOBITS)]
    ranges = tables + [(header.sh_offset, header.sh_size) for header in headers]
    is_cut = any(start < offset < start + size for start, size in ranges)
    loaded_follows = any(header.sh_flags & SHF.ALLOC and header.sh_offset >= offset and header.sh_size for header in headers)
    return len(elf.data) if is_cut or loaded_follows else min(offset, len(elf.data))


def unmoved_prefix_size(elf: ElfFile) -> int:
    """Return how many bytes at the beginning of the file keep their offsets under any plan, so that they can be copied early."""
    return 0 if elf.header.e_type == ET.EXEC else find_insertion_offset(elf)


def find_build_id(elf: ElfFile) -> Extent | None:
    """Return the range of the build-id note, None unless it is in the file's first page."""
    ids = (note for note in read_valid_notes(elf) if note.type == NT_GNU_BUILD_ID and note.name == b"GNU\0")
    extents = (Extent(note.offset, note.offset + 16 + len(note.desc), align=4) for note in ids)  # 16: header and "GNU"
    return next((extent for extent in extents if extent.end <= FIRST_PAGE), None)


def check_header(elf: ElfFile, new_headers: int) -> None:
    """Raise FormatError or RefusedError for a file without room for a section and `new_headers` more program headers."""
    header = elf.header
    if header.e_type not in (ET.EXEC, ET.DYN):
        raise elf.error("not a linked program or library")
    if any(section.name == ".sframe" or section.header.sh_type == SHT.GNU_SFRAME for section in elf.sections) or any(
        segment.p_type == PT.GNU_SFRAME and segment.p_filesz for segment in elf.segments
    ):
        raise elf.error("has an .sframe section already; take it out first (sframegen remove)")
    if elf.phnum + new_headers > MAX_PROGRAM_HEADERS:
        excess = f": {new_headers} more would be" if new_headers else ","
        message = f"has {elf.phnum:,} program headers{excess} above the {MAX_PROGRAM_HEADERS:,} that kernels read"
        raise RefusedError(Refusal.NO_ROOM, message, file=elf.name)
    if header.e_phoff < EHDR_SIZE:
        raise elf.error("has no program header table after its ELF header: not a linked program or library")


def check_loads(elf: ElfFile) -> list[Phdr]:
    """Return the PT_LOADs. Raises FormatError if they are not ascending and disjoint, or reach past the end of the file."""
    loads = [segment for segment in elf.segments if segment.p_type == PT.LOAD]
    if not loads:
        raise elf.error("has no PT_LOAD: not a linked program or library")
    end = 0
    for load in loads:
        fault = describe_load_fault(load, end)
        if fault:
            raise elf.error(f"PT_LOAD at {load.p_vaddr:#x} {fault}", "program header table")
        if load.p_filesz:  # ld gives a meaningless offset where all data is .bss
            elf.slice(load.p_offset, load.p_filesz, "PT_LOAD")
        end = load.p_vaddr + load.p_memsz
    return loads


def describe_load_fault(load: Phdr, end: int) -> str:
    """Return in words what is wrong with a PT_LOAD, or "". `end`: the end address of the PT_LOAD before it."""
    if load.p_align & (load.p_align - 1) or load.p_align > MAX_ALIGN:
        return f"is aligned to {load.p_align:#x}"
    if load.p_filesz > load.p_memsz:
        return "has more bytes in the file than in memory"
    if load.p_vaddr + load.p_memsz > MAX_ADDRESS:
        return f"ends above {MAX_ADDRESS:#x}: not a program or library, but perhaps a kernel"
    return f"is out of order: the one before it ends at {end:#x}" if load.p_vaddr < end else ""


def check_sections(elf: ElfFile) -> None:
    """Raise FormatError if a section is not in the file or overlaps the ELF header, or if the section names cannot grow."""
    for section in elf.sections:
        if section.header.sh_type not in (SHT.NULL, SHT.NOBITS):
            elf.slice(section.header.sh_offset, section.header.sh_size, section.name)
            if section.header.sh_size and section.header.sh_offset < EHDR_SIZE:
                raise elf.error("overlaps the ELF header", section.name)
    if elf.sections and (elf.shstrndx == 0 or elf.sections[elf.shstrndx].header.sh_flags & SHF.ALLOC):
        raise elf.error("has no table of section names that could grow", "section header table")


def image_end(elf: ElfFile) -> int:
    """Return the file offset after all headers, segments and sections."""
    sections = [s.header for s in elf.sections if s.header.sh_type not in (SHT.NULL, SHT.NOBITS)]
    return max(
        EHDR_SIZE,
        elf.header.e_phoff + elf.phnum * PHDR_SIZE,
        elf.header.e_shoff + elf.shnum * SHDR_SIZE,
        *(s.p_offset + s.p_filesz for s in elf.segments),
        *(s.sh_offset + s.sh_size for s in sections),
    )


def check_no_appended_data(elf: ElfFile) -> None:
    """Raise RefusedError if data other than zeros and a signature follows the image.

    Some readers find such data from the end of the file (zip), others after the section headers (AppImages) or at a stored
    offset. Therefore no position of a new segment suits all of them.
    """
    start, end = image_end(elf), len(elf.data) - appended_signature_size(elf)
    for at in range(start, end, SCAN_CHUNK):
        content = bytes(elf.data[at : min(at + SCAN_CHUNK, end)]).lstrip(b"\0")
        if content:
            kind = next((f", {name}" for magic, name in PAYLOADS.items() if content.startswith(magic)), "")
            message = f"{end - start} bytes follow the ELF image at {start:#x}{kind}: a new section would hide them; "
            raise RefusedError(Refusal.APPENDED_DATA, message + "add it before they are appended", file=elf.name)
