"""Reads the headers of a written file with a library that shares no code with the writer: LIEF or pyelftools.

For a good file both report the same header tables, segments and sections. LIEF takes half a second to import and almost no time
per file; pyelftools takes 0.05 seconds to import and some milliseconds per file.
"""

from __future__ import annotations

import errno
import sys
import warnings
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sframegen.base.errors import Refusal, RefusedError
from sframegen.elf.file import Section, open_elf
from sframegen.elf.records import Phdr, Shdr
from sframegen.program.libraries import import_library
from sframegen.program.signals import signals_held

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import lief

Reader = Literal["lief", "elftools"]
# Reader -> its module, and a name that another project's module of the same name would lack.
LIBRARIES: dict[Reader, tuple[str, str]] = {"lief": ("lief", "ELF"), "elftools": ("elftools.elf.elffile", "ELFFile")}
TYPE_MASK = 0xFFFFFFFF  # LIEF stores the architecture above the type's own 32 bits
LARGE = 16 << 20  # bytes: changing a file of this size takes longer than importing LIEF
MANY = 40  # files in a run from which on LIEF's import pays off


class ReadBack(NamedTuple):
    """The headers that a reader found; section headers without sh_name."""

    table_offset: int
    segments: list[Phdr]
    sections: list[Section]
    identity: dict[str, int]  # header fields that never change


def choose_reader(size: int) -> Reader:
    """Return the quicker of the available readers for a file of that size. Raises ImportError if neither can be loaded.

    The library is imported here, before a temporary file exists: an exception during the import ends the process.
    """
    if ("lief" in sys.modules or size >= LARGE) and _lief_loads():
        return "lief"
    _load("elftools")
    return "elftools"


def import_for_many(files: int) -> None:
    """Import LIEF if many files will be read back, before worker processes are forked, so that all of them share it."""
    if files >= MANY:
        _lief_loads()


@cache
def _lief_loads() -> bool:
    """Import LIEF; return False if that fails: it has no wheels for s390x, and some systems lack its C++ library."""
    try:
        _load("lief")
    except ImportError:
        return False
    return True


def _load(reader: Reader) -> None:
    with signals_held():
        import_library(*LIBRARIES[reader])


def read_back(path: Path, reader: Reader) -> ReadBack | None:
    """Return the headers of the file at a path; None if the reader cannot read it."""
    return READERS[reader](path)


def _with_lief(path: Path) -> ReadBack | None:
    import lief  # noqa: PLC0415 - takes longer to import than most files to change

    config = lief.ELF.ParserConfig()
    config.parse_dyn_symbols = config.parse_notes = config.parse_overlay = config.parse_relocations = False
    config.parse_symbol_versions = config.parse_symtab_symbols = False
    with warnings.catch_warnings(), lief.logging.level_scope(lief.logging.LEVEL.OFF):
        warnings.simplefilter("ignore", RuntimeWarning)  # "1685382484 is not a valid TYPE": LIEF knows no SFrame
        try:
            binary = lief.ELF.parse(path, config)
        except MemoryError as error:
            size = path.stat().st_size
            message = f"cannot be read back: LIEF needs as much memory as the file is large, {size:,} bytes"
            raise RefusedError(Refusal.NO_MEMORY_TO_VERIFY, message) from error
        if not isinstance(binary, lief.ELF.Binary):
            return None
        written = _converted(binary)
    if binary.header.section_header_offset and not binary.header.numberof_sections:  # too many for the field: LIEF then reads none
        written = written._replace(sections=[without_name_offset(section) for section in open_elf(path).sections])
    return written


def _converted(binary: lief.ELF.Binary) -> ReadBack:
    segments = [
        Phdr(
            p_type=int(s.type) & TYPE_MASK,
            p_flags=s.raw_flags,
            p_offset=s.file_offset,
            p_vaddr=s.virtual_address,
            p_paddr=s.physical_address,
            p_filesz=s.physical_size,
            p_memsz=s.virtual_size,
            p_align=s.alignment,
        )
        for s in binary.segments
    ]
    sections = [
        Section(
            number,
            s.name if isinstance(s.name, str) else s.name.decode(errors="replace"),
            Shdr(
                sh_name=0,
                sh_type=int(s.type) & TYPE_MASK,
                sh_flags=s.flags,
                sh_addr=s.virtual_address,
                sh_offset=s.offset,
                sh_size=s.size,
                sh_link=s.link,
                sh_info=s.information,
                sh_addralign=s.alignment,
                sh_entsize=s.entry_size,
            ),
        )
        for number, s in enumerate(binary.sections)
    ]
    header = binary.header
    identity = {
        "e_type": int(header.file_type),
        "e_machine": int(header.machine_type),
        "e_entry": header.entrypoint,
        "e_flags": header.processor_flag,
    }
    return ReadBack(header.program_header_offset, segments, sections, identity)


def _with_elftools(path: Path) -> ReadBack | None:
    """Read only the header tables: pyelftools refuses files in which a section's contents do not match its type."""
    from elftools.common.exceptions import ELFError  # noqa: PLC0415 - not for LIEF
    from elftools.common.utils import struct_parse  # noqa: PLC0415
    from elftools.elf.elffile import ELFFile  # noqa: PLC0415
    from elftools.elf.sections import StringTableSection  # noqa: PLC0415

    numbers = _numbers()

    def fields(record: Mapping[str, Any], *kinds: str) -> dict[str, Any]:
        return {field: numbers[value] if field in kinds and isinstance(value, str) else value for field, value in record.items()}

    try:
        with path.open("rb") as stream:
            elf = ELFFile(stream)
            header = fields(elf.header, "e_type", "e_machine")
            segments = [
                Phdr(**fields(struct_parse(elf.structs.Elf_Phdr, stream, at), "p_type"))
                for at in _places(header["e_phoff"], header["e_phentsize"], elf.num_segments())
            ]
            records = [
                Shdr(**fields(struct_parse(elf.structs.Elf_Shdr, stream, at), "sh_type"))
                for at in _places(header["e_shoff"], header["e_shentsize"], elf.num_sections())
            ]
            names = elf.get_section(elf.get_shstrndx()) if records else None
            names = names if isinstance(names, StringTableSection) else None
            sections = [
                without_name_offset(Section(number, names.get_string(record.sh_name) if names else "", record))
                for number, record in enumerate(records)
            ]
    except (ELFError, LookupError, ValueError):
        return None
    except OSError as error:
        if error.errno == errno.EINVAL:  # an impossible file offset
            return None
        raise
    identity = {field: header[field] for field in ("e_type", "e_machine", "e_entry", "e_flags")}
    return ReadBack(header["e_phoff"], segments, sections, identity)


@cache
def _numbers() -> dict[str, int]:
    """Return pyelftools' ELF constants: number by name."""
    from elftools.elf import enums  # noqa: PLC0415 - not for LIEF

    kinds = ("ENUM_P_TYPE", "ENUM_SH_TYPE", "ENUM_E_TYPE", "ENUM_E_MACHINE")
    tables = [table for name, table in vars(enums).items() if name.startswith(kinds)]
    return {name: number for table in tables for name, number in table.items()}


def _places(table: int, size: int, count: int) -> range:
    """Return the file offsets of a table's records."""
    return range(table, table + size * count, size) if count else range(0)


def without_name_offset(section: Section) -> Section:
    return section._replace(header=section.header._replace(sh_name=0))


READERS: dict[Reader, Callable[[Path], ReadBack | None]] = {"lief": _with_lief, "elftools": _with_elftools}
