"""The `.sframe` sections of a relocatable object: encoded, with their relocations, and written behind everything else.

A piece holds the functions that stay or go together: those of one section group, or all that are in none. Linkers drop a group as a
whole, and refuse a section outside of it that refers to what was dropped.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from linker.apply import copy_file
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
from sframegen.format.records import F_FDE_FUNC_START_PCREL, FLAGS_AT, HEADER_SIZE
from sframegen.optimize import encoder_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sframegen.elf import ElfFile, Section
    from sframegen.format.encode import Encoder
    from sframegen.format.words import EncodedRules
    from sframegen.model import FunctionTable
    from sframegen.optimize import Level

ALIGN = 8


class Piece(NamedTuple):
    """`group`: the section group that it is a member of, if any."""

    group: Section | None
    section: bytearray
    relocations: list[Rela]


def pieces_of(elf: ElfFile, placed: Placed, table: FunctionTable, encoded: EncodedRules, level: Level) -> list[Piece]:
    """`table`: functions at the addresses that `placed` gave them."""
    group_of = groups(elf)
    functions: dict[int, list[int]] = defaultdict(list)
    for function, start in enumerate(table.start):
        group = group_of.get(placed.section_at(start))
        functions[group.number if group else 0].append(function)
    made = []
    for number, chosen in functions.items():
        encoder = encoder_at(select(table, chosen), encoded, level)
        made.append(Piece(elf.sections[number] if number else None, _section(encoder), _relocations(encoder, placed)))
    return made


def _section(encoder: Encoder) -> bytearray:
    """Function starts are left to the relocations; only a linker knows whether they ascend."""
    section = encoder.encode(0)
    section[FLAGS_AT] = F_FDE_FUNC_START_PCREL
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


def write_object(elf: ElfFile, symbol_table: Section, pieces: Sequence[Piece], out: BinaryIO) -> None:
    """The whole object to `out`, an empty file: the original, then what is new or has grown, then the section headers."""
    mark = MARKS[elf.byte_order]
    names = elf.sections[elf.shstrndx]
    headers = [section.header for section in elf.sections]
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
        number = len(headers)
        headers += [
            Shdr(sframe_name, SHT_GNU_SFRAME, SHF_ALLOC | in_group, 0, append(piece.section), len(piece.section), 0, 0, ALIGN, 0),
            Shdr(
                rela_name,
                SHT_RELA,
                SHF_INFO_LINK | in_group,
                0,
                append(raw),
                len(raw),
                symbol_table.number,
                number,
                ALIGN,
                RELA_SIZE,
            ),
        ]
        if piece.group:
            members[piece.group.number] += [number, number + 1]
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
