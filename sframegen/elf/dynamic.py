"""Reads the dynamic section (PT_DYNAMIC) of a linked file, and tells programs, libraries and dynamic loaders apart."""

from __future__ import annotations

import re
from enum import Enum

from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.elf.records import DYN_SIZE, ET, PT, RECORDS, DynEntry, Phdr
from sframegen.elf.relocations import unpack_columns

if TYPE_CHECKING:
    from sframegen.elf.file import ElfFile


class DT:
    NULL, NEEDED, PLTRELSZ, PLTGOT, HASH, STRTAB, SYMTAB, RELA, RELASZ = range(9)
    STRSZ, INIT, FINI, SONAME, REL, TEXTREL, JMPREL = 10, 12, 13, 14, 17, 22, 23
    INIT_ARRAY, FINI_ARRAY, INIT_ARRAYSZ, FINI_ARRAYSZ = range(25, 29)
    FLAGS, PREINIT_ARRAY, PREINIT_ARRAYSZ, RELR = 30, 32, 33, 36
    ANDROID_REL, ANDROID_RELA = 0x6000000F, 0x60000011
    GNU_HASH, VERSYM, FLAGS_1, VERDEF, VERNEED = 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFB, 0x6FFFFFFC, 0x6FFFFFFE


DF_TEXTREL, DF_1_PIE = 4, 0x08000000

# Symbols that only dynamic loaders define, for their C library and for debuggers: of glibc, of musl and uClibc, and of Android.
LOADER_NAMES = (b"_rtld_global", b"_dl_debug_addr", b"rtld_db_dlactivity", b"__loader_dlopen")
LOADER_SONAME = re.compile(rb"ld\d*(-[\w-]+)?\.so(\.\d+)*\0")  # ld-linux-x86-64.so.2, ld64.so.1, ld-android.so
MAX_SONAME = 256  # bytes
MAX_DYNAMIC = 1 << 16  # entries; real files have about thirty, and one for each needed library


class Dyn(NamedTuple):
    """An entry of the dynamic section. `offset`: file offset of its value."""

    tag: int
    value: int
    offset: int


def dynamic_segment(elf: ElfFile) -> Phdr | None:
    return next((segment for segment in elf.segments if segment.p_type == PT.DYNAMIC), None)


def read_dynamic(elf: ElfFile) -> list[Dyn]:
    """Return the entries before DT_NULL; a static program has none."""
    segment = dynamic_segment(elf)
    if segment is None:
        return []
    raw = elf.slice(segment.p_offset, segment.p_filesz, "PT_DYNAMIC")
    if len(raw) > MAX_DYNAMIC * DYN_SIZE:
        raise elf.error(f"more than {MAX_DYNAMIC} entries", "PT_DYNAMIC")
    entries = []
    code = RECORDS[DynEntry, elf.byte_order]
    for index, (tag, value) in enumerate(code.iter_unpack(raw[: len(raw) // DYN_SIZE * DYN_SIZE])):
        if tag == DT.NULL:
            break
        entries.append(Dyn(tag, value, segment.p_offset + index * DYN_SIZE + 8))
    return entries


class Role(Enum):
    """How a linked file is run. The value is the role's text in messages."""

    PROGRAM = "is a program"
    LIBRARY = "is a library"
    LOADER = "is a dynamic loader"
    UNSURE = "may be a dynamic loader"


def determine_role(elf: ElfFile, dynamic: list[Dyn]) -> Role:
    """Return whether the kernel starts the file, a dynamic loader maps it, or the kernel starts other programs with it.

    A loader runs before any other file is loaded: it has an entry point, needs no other file, and relocates itself. Libraries from
    older linkers also have an entry point, and some need no other file; but their relocations name symbols that the program
    defines or may override. Most loaders have no such relocations; those that do are recognised by name.
    """
    tags = {entry.tag: entry.value for entry in dynamic}
    if elf.header.e_type != ET.DYN or not tags or any(segment.p_type == PT.INTERP for segment in elf.segments):
        return Role.PROGRAM
    starts_alone = elf.header.e_entry and DT.NEEDED not in tags
    if starts_alone and is_named_as_loader(elf, tags):
        return Role.LOADER
    if tags.get(DT.FLAGS_1, 0) & DF_1_PIE:
        return Role.PROGRAM
    return Role.UNSURE if starts_alone and not relocates_by_symbol(elf, tags) else Role.LIBRARY


def is_named_as_loader(elf: ElfFile, tags: dict[int, int]) -> bool:
    """Return True if the file's soname or one of its symbols is a dynamic loader's."""
    if DT.STRTAB not in tags:
        return False
    names = bytes(elf.at(tags[DT.STRTAB], tags.get(DT.STRSZ, 0)))
    start = tags.get(DT.SONAME, len(names))
    soname = LOADER_SONAME.match(names[start : start + MAX_SONAME])
    return soname is not None or any(b"\0" + name + b"\0" in names for name in LOADER_NAMES)


def relocates_by_symbol(elf: ElfFile, tags: dict[int, int]) -> bool:
    """Return True if a dynamic relocation names a symbol."""
    for table, size in ((DT.RELA, DT.RELASZ), (DT.JMPREL, DT.PLTRELSZ)):
        if table in tags and size in tags:
            entries = unpack_columns(elf.at(tags[table], tags[size]), elf.byte_order)
            if any(info >> 32 for info in entries.info):  # the symbol's number
                return True
    return False
