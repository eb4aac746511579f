"""The `.sframe` sections of a relocatable object: encoded, with their relocations, and written behind everything else.

A piece holds the functions that stay or go together: those of one section group, or all that are in none. Linkers drop a group as a
whole, and refuse a section outside of it that refers to what was dropped.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from linker.apply import copy_file
from linker.inputs import sframe_sections
from linker.merge import select
from linker.objects import RELA_CODE, RELA_SIZE, Placed, Rela, groups
from linker.ranges import align_up
from sframegen.abi import Relocation
from sframegen.elf import (
    MARKS,
    RECORDS,
    SHF_ALLOC,
    SHF_GROUP,
    SHF_INFO_LINK,
    SHN_LORESERVE,
    SHT_GNU_SFRAME,
    SHT_RELA,
    Ehdr,
    Shdr,
)
from sframegen.format.encode import Encoder
from sframegen.format.records import F_FDE_FUNC_START_PCREL, HEADER_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sframegen.elf import ElfFile, Section
    from sframegen.format.words import EncodedRules
    from sframegen.model import FunctionTable

ALIGN = 8
NO_SECTION = Shdr(*[0] * len(Shdr._fields))


class Piece(NamedTuple):
    """`group`: the section group that it is a member of, if any."""

    group: Section | None
    section: bytearray
    relocations: list[Rela]


def pieces_of(elf: ElfFile, placed: Placed, table: FunctionTable, encoded: EncodedRules, flags: int = 0) -> list[Piece]:
    """`table`: functions at the addresses that `placed` gave them. `flags`: of the header, besides those that every piece has.

    No two functions share rows: GNU ld makes room for as many bytes as the objects have, and then writes the rows of each function
    apart, over what follows.
    """
    group_of = groups(elf)
    functions: dict[int, list[int]] = defaultdict(list)
    for function, start in enumerate(table.start):
        group = group_of.get(placed.section_at(start))
        functions[group.number if group else 0].append(function)
    made = []
    for number, chosen in functions.items():
        encoder = Encoder(select(table, chosen), encoded.abi, encoded.layout, encoded=encoded)
        encoder.flags = F_FDE_FUNC_START_PCREL | flags  # only a linker knows whether they ascend
        made.append(Piece(elf.sections[number] if number else None, _section(encoder), _relocations(encoder, placed)))
    return made


def _section(encoder: Encoder) -> bytearray:
    """Function starts are left to the relocations."""
    section = encoder.encode(0)
    layout = encoder.layout
    for at in range(HEADER_SIZE, HEADER_SIZE + len(encoder.table) * layout.index_size, layout.index_size):
        section[at : at + layout.start_width] = bytes(layout.start_width)
    return section


def _relocations(encoder: Encoder, placed: Placed) -> list[Rela]:
    """One for each function, against the symbol that its FDE's relocation has."""
    layout = encoder.layout
    wanted = Relocation(layout.start_width, pc_relative=True)
    kind = next(number for number, relocation in encoder.abi.relocations.items() if relocation == wanted)
    found = []
    for function, start in enumerate(encoder.table.start):
        anchor = placed.anchor_of(start)
        at = HEADER_SIZE + function * layout.index_size
        found.append(Rela(at, kind, anchor.symbol, anchor.addend + start - anchor.address))
    return found


def old_sections(elf: ElfFile) -> Iterator[tuple[int, int, int]]:
    """(its section group's number or 0, its number, that of its relocations) of each SFrame section."""
    group_of = groups(elf)
    relocations = {section.header.sh_info: section.number for section in elf.sections if section.header.sh_type == SHT_RELA}
    for section in sframe_sections(elf):
        group = group_of.get(section.number)
        if section.number in relocations:
            yield (group.number if group else 0), section.number, relocations[section.number]


def write_object(elf: ElfFile, symbol_table: Section, pieces: Sequence[Piece], out: BinaryIO) -> None:
    """The whole object to `out`, an empty file: the original, then what is new or has grown, then the section headers.

    SFrame sections that the object has are taken out: what is new has their numbers, as far as they go.
    """
    mark = MARKS[elf.byte_order]
    names = elf.sections[elf.shstrndx]
    headers = [section.header for section in elf.sections]
    free: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by the section group: numbers of sections and their relocations
    for group, number, relocations in old_sections(elf):
        free[group].append((number, relocations))
        headers[number] = headers[relocations] = NO_SECTION
    sframe_name = names.header.sh_size
    rela_name = sframe_name + len(".sframe\0")
    members: dict[int, list[int]] = defaultdict(list)
    chunks: list[tuple[int, bytes | bytearray]] = []
    end = len(elf.data)

    def append(data: bytes | bytearray) -> int:
        """The file offset of `data`."""
        nonlocal end
        at = align_up(end, ALIGN)
        chunks.append((at, data))
        end = at + len(data)
        return at

    for piece in pieces:
        in_group = SHF_GROUP if piece.group else 0
        raw = b"".join(struct.pack(mark + RELA_CODE, r.offset, r.symbol << 32 | r.type, r.addend) for r in piece.relocations)
        group = piece.group.number if piece.group else 0
        if free[group]:
            number, relocations = free[group].pop(0)
        else:
            number, relocations = len(headers), len(headers) + 1
            headers += [NO_SECTION, NO_SECTION]
            if group:
                members[group] += [number, relocations]
        headers[number] = Shdr(
            sframe_name, SHT_GNU_SFRAME, SHF_ALLOC | in_group, 0, append(piece.section), len(piece.section), 0, 0, ALIGN, 0
        )
        headers[relocations] = Shdr(
            rela_name, SHT_RELA, SHF_INFO_LINK | in_group, 0, append(raw), len(raw), symbol_table.number, number, ALIGN, RELA_SIZE
        )
    for group, numbers in members.items():
        at, size = headers[group].sh_offset, headers[group].sh_size
        data = bytes(elf.slice(at, size, "section group")) + struct.pack(f"{mark}{len(numbers)}I", *numbers)
        headers[group] = headers[group]._replace(sh_offset=append(data), sh_size=len(data))
    data = bytes(elf.slice(names.header.sh_offset, names.header.sh_size, "section names")) + b".sframe\0.rela.sframe\0"
    headers[names.number] = names.header._replace(sh_offset=append(data), sh_size=len(data))
    header = elf.header._replace(e_shnum=len(headers) if len(headers) < SHN_LORESERVE else 0)
    if header.e_shnum == 0:
        headers[0] = headers[0]._replace(sh_size=len(headers))
    shdr = RECORDS[Shdr, elf.byte_order]
    header = header._replace(e_shoff=append(b"".join(shdr.pack(*one) for one in headers)))
    copy_file(elf, out)
    for at, chunk in [(0, RECORDS[Ehdr, elf.byte_order].pack(*header)), *chunks]:
        out.seek(at)
        out.write(chunk)
