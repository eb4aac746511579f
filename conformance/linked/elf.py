"""Sections -> a 64-bit ELF file, as small as it can be."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from conformance.machines import MARKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conformance.machines import Machine

ET_REL, ET_DYN = 1, 3
SHT_PROGBITS, SHT_SYMTAB, SHT_STRTAB, SHT_RELA, SHT_NOBITS, SHT_GROUP, SHT_GNU_SFRAME = 1, 2, 3, 4, 8, 17, 0x6FFFFFF4
SHF_ALLOC, SHF_EXECINSTR, SHF_INFO_LINK, SHF_GROUP = 2, 4, 0x40, 0x200
PT_LOAD, PT_GNU_STACK, PT_GNU_SFRAME = 1, 0x6474E551, 0x6474E554
EHDR, PHDR, SHDR = 64, 56, 64


class ElfSection(NamedTuple):
    """`size`: of SHT_NOBITS, which has no data."""

    name: str
    kind: int
    flags: int = 0
    data: bytes = b""
    address: int = 0
    size: int = 0
    link: int = 0
    info: int = 0
    align: int = 8
    entry_size: int = 0


class Segment(NamedTuple):
    """`section`: its number from 1; None for no bytes."""

    kind: int
    flags: int
    section: int | None


def elf_file(machine: Machine, kind: int, sections: Sequence[ElfSection], segments: Sequence[Segment] = ()) -> bytes:
    mark = MARKS[machine.byte_order]
    names = b"\0" + b"".join(section.name.encode() + b"\0" for section in sections) + b".shstrtab\0"
    sections = [*sections, ElfSection(".shstrtab", SHT_STRTAB, data=names, align=1)]
    body, places = bytearray(), []
    at = EHDR + PHDR * len(segments)
    for section in sections:
        body += bytes(-(at + len(body)) % section.align)
        places.append(at + len(body))
        body += section.data
    body += bytes(-(at + len(body)) % 8)
    headers = [bytes(SHDR)]
    name_at = 1
    for section, place in zip(sections, places, strict=True):
        size = section.size or len(section.data)
        fields = (name_at, section.kind, section.flags, section.address, place, size, section.link, section.info, section.align)
        headers.append(struct.pack(mark + "IIQQQQIIQQ", *fields, section.entry_size))
        name_at += len(section.name) + 1
    order = 1 if machine.byte_order == "little" else 2
    fields_ = (kind, machine.e_machine, 1, 0, EHDR if segments else 0, at + len(body), 0, EHDR, PHDR, len(segments), SHDR)
    header = b"\x7fELF\x02" + bytes((order, 1)) + bytes(9)
    header += struct.pack(mark + "HHIQQQIHHHHHH", *fields_, len(headers), len(headers) - 1)
    table = b"".join(_segment(mark, segment, sections, places) for segment in segments)
    return header + table + bytes(body) + b"".join(headers)


def _segment(mark: str, segment: Segment, sections: Sequence[ElfSection], places: Sequence[int]) -> bytes:
    if segment.section is None:
        return struct.pack(mark + "IIQQQQQQ", segment.kind, segment.flags, 0, 0, 0, 0, 0, 16)
    section = sections[segment.section - 1]
    place, address = places[segment.section - 1], section.address
    file_size, size = len(section.data), section.size or len(section.data)
    return struct.pack(mark + "IIQQQQQQ", segment.kind, segment.flags, place, address, address, file_size, size, section.align)


def linked_file(machine: Machine, section: bytes, address: int, code: tuple[int, int]) -> bytes:
    """A library whose code has no bytes in the file."""
    text = ElfSection(".text", SHT_NOBITS, SHF_ALLOC | SHF_EXECINSTR, address=code[0], size=code[1] - code[0])
    sframe = ElfSection(".sframe", SHT_GNU_SFRAME, SHF_ALLOC, section, address)
    loads = sorted([(code[0], Segment(PT_LOAD, 5, 1)), (address, Segment(PT_LOAD, 4, 2))])
    segments = [*(load for _, load in loads), Segment(PT_GNU_SFRAME, 4, 2), Segment(PT_GNU_STACK, 6, None)]
    return elf_file(machine, ET_DYN, [text, sframe], segments)
