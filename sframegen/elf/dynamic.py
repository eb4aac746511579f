"""The dynamic section of a linked file, which PT_DYNAMIC names and the dynamic linker reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sframegen.elf.records import DYN_SIZE, PT, RECORDS, DynEntry

if TYPE_CHECKING:
    from sframegen.elf.file import ElfFile
    from sframegen.elf.records import Phdr


class DT:
    NULL, NEEDED, PLTRELSZ, PLTGOT, HASH, STRTAB, SYMTAB, RELA, RELASZ = range(9)
    STRSZ, INIT, FINI, SONAME, REL, TEXTREL, JMPREL = 10, 12, 13, 14, 17, 22, 23
    INIT_ARRAY, FINI_ARRAY, INIT_ARRAYSZ, FINI_ARRAYSZ = range(25, 29)
    FLAGS, PREINIT_ARRAY, PREINIT_ARRAYSZ, RELR = 30, 32, 33, 36
    ANDROID_REL, ANDROID_RELA = 0x6000000F, 0x60000011
    GNU_HASH, VERSYM, FLAGS_1, VERDEF, VERNEED = 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFB, 0x6FFFFFFC, 0x6FFFFFFE


DF_TEXTREL, DF_1_PIE = 4, 0x08000000

MAX_DYNAMIC = 1 << 16  # entries: one for each library that is needed, and some thirty


class Dyn(NamedTuple):
    """An entry of the dynamic section; `offset` is of its value in the file."""

    tag: int
    value: int
    offset: int


def dynamic_segment(elf: ElfFile) -> Phdr | None:
    return next((segment for segment in elf.segments if segment.p_type == PT.DYNAMIC), None)


def read_dynamic(elf: ElfFile) -> list[Dyn]:
    """The entries before DT_NULL; none for static programs."""
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
