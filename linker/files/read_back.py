"""Reads the headers of a written file with a library that shares no code with the writer: LIEF or pyelftools.

For a valid file both report the same header tables, segments and sections. LIEF takes 0.4 seconds to import, 0.2 ms per small file,
and as much memory as the file is large. pyelftools takes 0.02 seconds to import, 1 ms per file, and hardly any memory.
"""

from __future__ import annotations

import mmap
import sys
import warnings
from functools import cache
from operator import itemgetter

from sframegen.base.quick_typing import TYPE_CHECKING, Any, Literal, NamedTuple
from sframegen.elf.file import Section
from sframegen.elf.records import PN_XNUM, SHN, UNUSED_SECTION, Ehdr, Phdr, R, Shdr
from sframegen.program.libraries import import_library
from sframegen.program.signals import signals_held

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import lief

Reader = Literal["lief", "elftools"]
# Reader -> (its module, an attribute of it, which another project's module of the same name does not have).
LIBRARIES: dict[Reader, tuple[str, str]] = {"lief": ("lief", "ELF"), "elftools": ("elftools.elf.structs", "ELFStructs")}
TYPE_MASK = 0xFFFFFFFF  # LIEF stores the architecture above the type's own 32 bits
MAX_LIEF_BYTES = 16 << 20  # LIEF reads the whole file into memory
MIN_FILES_FOR_LIEF = 400  # LIEF's import only pays off in a run over this many files


class ReadBack(NamedTuple):
    """The headers that a reader found. In section headers, sh_name is 0."""

    table_offset: int
    segments: list[Phdr]
    sections: list[Section]
    identity: dict[str, int]  # type, machine, entry point and flags, which no change of a file affects


def choose_reader(size: int) -> Reader:
    """Return the reader for a file of that size: LIEF if `import_for_many` imported it and the file is small, else pyelftools.

    The library is imported here, before a temporary file exists that an interrupted import could leave. Raises ImportError.
    """
    if "lief" in sys.modules and size < MAX_LIEF_BYTES and _try_import_lief():
        return "lief"
    _import_reader("elftools")
    return "elftools"


def import_for_many(files: int) -> None:
    """Import LIEF if many files will be read back, before worker processes are forked, so that all of them share it."""
    if files >= MIN_FILES_FOR_LIEF:
        _try_import_lief()


@cache
def _try_import_lief() -> bool:
    """Import LIEF, and return False if that fails: it has no wheels for s390x, and some systems lack its C++ library."""
    try:
        _import_reader("lief")
    except ImportError:
        return False
    return True


def _import_reader(reader: Reader) -> None:
    with signals_held():
        import_library(*LIBRARIES[reader])


def read_back(path: Path, reader: Reader) -> ReadBack | None:
    """Return the headers of the file at a path; None if the reader cannot read it."""
    return READERS[reader](path)


def _read_with_lief(path: Path) -> ReadBack | None:
    import lief  # noqa: PLC0415 - takes longer to import than most files to change

    config = lief.ELF.ParserConfig()
    config.parse_dyn_symbols = config.parse_notes = config.parse_overlay = config.parse_relocations = False
    config.parse_symbol_versions = config.parse_symtab_symbols = False
    with warnings.catch_warnings(), lief.logging.level_scope(lief.logging.LEVEL.OFF):
        warnings.simplefilter("ignore", RuntimeWarning)  # "1685382484 is not a valid TYPE": LIEF does not know SFrame
        binary = lief.ELF.parse(path, config)
        if not isinstance(binary, lief.ELF.Binary):
            return None
        written = _convert_lief(binary)
    # If the ELF header's field is too small for the number of sections, LIEF reads none of them.
    lacks_sections = binary.header.section_header_offset and not binary.header.numberof_sections
    return _read_with_elftools(path) if lacks_sections else written


def _convert_lief(binary: lief.ELF.Binary) -> ReadBack:
    segments = [
        Phdr(
            p_type=int(s.type) & TYPE_MASK, p_flags=s.raw_flags, p_offset=s.file_offset, p_vaddr=s.virtual_address,
            p_paddr=s.physical_address, p_filesz=s.physical_size, p_memsz=s.virtual_size, p_align=s.alignment,
        )
        for s in binary.segments
    ]  # fmt: skip
    sections = [
        Section(
            number,
            s.name if isinstance(s.name, str) else s.name.decode(errors="replace"),
            Shdr(
                sh_name=0, sh_type=int(s.type) & TYPE_MASK, sh_flags=s.flags, sh_addr=s.virtual_address, sh_offset=s.offset,
                sh_size=s.size, sh_link=s.link, sh_info=s.information, sh_addralign=s.alignment, sh_entsize=s.entry_size,
            ),
        )
        for number, s in enumerate(binary.sections)
    ]  # fmt: skip
    header = binary.header
    identity = {
        "e_type": int(header.file_type),
        "e_machine": int(header.machine_type),
        "e_entry": header.entrypoint,
        "e_flags": header.processor_flag,
    }
    return ReadBack(header.program_header_offset, segments, sections, identity)


def _read_with_elftools(path: Path) -> ReadBack | None:
    """Read only the header tables, because pyelftools refuses files in which a section's contents do not match its type."""
    from elftools.common.exceptions import ELFError  # noqa: PLC0415 - not for LIEF
    from elftools.common.utils import parse_cstring_from_stream, struct_parse  # noqa: PLC0415

    data: Any  # pyelftools reads streams, such as this mapping
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[:5] != b"\x7fELF\2":  # 2: ELFCLASS64
                return None
            structs = _numeric_structs(little=data[5] == 1)  # EI_DATA is ELFDATA2LSB

            def parse_table(kind: type[R], table: int, count: int, size: int) -> list[R]:
                fields, struct = itemgetter(*kind._fields), structs[kind.__name__]
                offsets = range(table, table + count * size, size or 1)
                return [kind._make(fields(struct_parse(struct, data, at))) for at in offsets]

            [header] = parse_table(Ehdr, 0, 1, 1)
            # Section header 0 has the numbers that are too large for the ELF header.
            [section_zero] = parse_table(Shdr, header.e_shoff, 1, 1) if header.e_shoff else [UNUSED_SECTION]
            phnum = section_zero.sh_info if header.e_phnum == PN_XNUM else header.e_phnum
            shnum = (header.e_shnum or section_zero.sh_size) if header.e_shoff else 0
            segments = parse_table(Phdr, header.e_phoff, phnum, header.e_phentsize)
            headers = parse_table(Shdr, header.e_shoff, shnum, header.e_shentsize)
            names_number = section_zero.sh_link if header.e_shstrndx == SHN.XINDEX else header.e_shstrndx
            names = headers[names_number].sh_offset if headers and names_number else None
            sections = []
            for number, (name_offset, *fields) in enumerate(headers):
                name = b"" if names is None else parse_cstring_from_stream(data, names + name_offset) or b""
                sections.append(Section(number, name.decode(errors="replace"), Shdr(0, *fields)))
    except (ELFError, LookupError, ValueError, OverflowError):
        return None
    identity = {field: getattr(header, field) for field in ("e_type", "e_machine", "e_entry", "e_flags")}
    return ReadBack(header.e_phoff, segments, sections, identity)


@cache
def _numeric_structs(*, little: bool) -> dict[str, Any]:
    """Return pyelftools' structs of headers, changed to return numbers instead of the names of constants."""
    from elftools.construct import Struct  # noqa: PLC0415 - not for LIEF
    from elftools.elf.structs import ELFStructs  # noqa: PLC0415

    structs = ELFStructs(little_endian=little, elfclass=64)
    structs.create_basic_structs()
    structs.create_advanced_structs()
    kinds = {kind: getattr(structs, f"Elf_{kind}") for kind in ("Ehdr", "Phdr", "Shdr")}
    return {kind: Struct(kind, *(getattr(field, "subcon", field) for field in struct.subcons)) for kind, struct in kinds.items()}


def same_sections(sections: Sequence[Section], others: Sequence[Section]) -> bool:
    """Return True if the numbers, names and headers are equal, except for sh_name."""
    pairs = zip(sections, others, strict=False)  # a section is (number, name, header), and sh_name the header's first field
    return len(sections) == len(others) and all(a[:2] == b[:2] and a.header[1:] == b.header[1:] for a, b in pairs)


READERS: dict[Reader, Callable[[Path], ReadBack | None]] = {"lief": _read_with_lief, "elftools": _read_with_elftools}
