"""The role of a linked file: program, library or dynamic loader. No header marks a loader, which others name in PT_INTERP."""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING

from sframegen.elf.dynamic import DF_1_PIE, DT
from sframegen.elf.records import ET, PT
from sframegen.elf.relocations import columns

if TYPE_CHECKING:
    from sframegen.elf.dynamic import Dyn
    from sframegen.elf.file import ElfFile

# Symbols that only loaders define, for their C library and for debuggers: glibc's; musl's and uClibc's; Android's.
NAMES = (b"_rtld_global", b"_dl_debug_addr", b"rtld_db_dlactivity", b"__loader_dlopen")
SONAME = re.compile(rb"ld\d*(-[\w-]+)?\.so(\.\d+)*\0")  # ld-linux-x86-64.so.2, ld64.so.1, ld-android.so
MAX_SONAME = 256  # bytes


class Role(Enum):
    """The value is what users read."""

    PROGRAM = "is a program"
    LIBRARY = "is a library"
    LOADER = "is a dynamic loader"
    UNSURE = "may be a dynamic loader"


def role_of(elf: ElfFile, dynamic: list[Dyn]) -> Role:
    """Return whether a kernel starts the file, a dynamic loader maps it, or a kernel starts other programs with it.

    A loader runs before any other file is there: it has an entry point, needs no other file, and relocates itself. Libraries from
    older linkers have an entry point, too, and some need no other file; but their relocations have symbols, for what the program
    that loads them defines or may override. A loader's need none; those that have some are known by name.
    """
    tags = {entry.tag: entry.value for entry in dynamic}
    if elf.header.e_type != ET.DYN or not tags or any(segment.p_type == PT.INTERP for segment in elf.segments):
        return Role.PROGRAM
    alone = elf.header.e_entry and DT.NEEDED not in tags
    if alone and is_named_as_loader(elf, tags):
        return Role.LOADER
    if tags.get(DT.FLAGS_1, 0) & DF_1_PIE:
        return Role.PROGRAM
    return Role.UNSURE if alone and not relocates_by_symbol(elf, tags) else Role.LIBRARY


def is_named_as_loader(elf: ElfFile, tags: dict[int, int]) -> bool:
    """True if its soname or a symbol is a dynamic loader's."""
    if DT.STRTAB not in tags:
        return False
    names = bytes(elf.at(tags[DT.STRTAB], tags.get(DT.STRSZ, 0)))
    start = tags.get(DT.SONAME, len(names))
    soname = SONAME.match(names[start : start + MAX_SONAME])
    return soname is not None or any(b"\0" + name + b"\0" in names for name in NAMES)


def relocates_by_symbol(elf: ElfFile, tags: dict[int, int]) -> bool:
    for table, size in ((DT.RELA, DT.RELASZ), (DT.JMPREL, DT.PLTRELSZ)):
        if table in tags and size in tags:
            entries = columns(elf.at(tags[table], tags[size]), elf.byte_order)
            if any(info >> 32 for info in entries.info):
                return True
    return False
