"""add-section for what is not linked yet: one object, or each object of an archive."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from linker.apply import copy_file
from linker.archive import is_archive, members, rewritten
from linker.merge import gather
from linker.objects import Placed, groups, place
from linker.pieces import Piece, old_sections, pieces_of, write_object
from sframegen.abi import abi_of
from sframegen.agreement import agree, difference
from sframegen.conversion import Converted, convert_sources
from sframegen.elf import ET_REL, SHT_GNU_SFRAME, ElfFile
from sframegen.files import map_file
from sframegen.format.decode import decode
from sframegen.optimize import MAX_GAP, encoder_of
from sframegen.sources import Sources, find_sources

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from linker.replace import Source
    from sframegen.format.layouts import Layout
    from sframegen.model import FunctionTable
    from sframegen.optimize import Level


class Filled(NamedTuple):
    """An object and the SFrame sections that it is to have, none: it stays as it is. `table`: what they say, as `placed`."""

    elf: ElfFile
    placed: Placed
    table: FunctionTable
    pieces: list[Piece]


class Prepared(NamedTuple):
    """An object to be filled with what its own call frame information says."""

    filled: Filled
    sources: Sources
    converted: Converted


def prepare(elf: ElfFile, layout: Layout, level: Level) -> Prepared:
    """Nothing is to do where the object has SFrame sections that say the same; raises FormatError where they say something else."""
    abi = abi_of(elf)
    placed = place(elf, abi)
    sources = find_sources(placed.image)
    converted = convert_sources(sources, placed.image.executable_ranges(), abi, layout)
    if not len(converted.table):
        return Prepared(Filled(elf, placed, converted.table, []), sources, converted)
    had = gather(tables_of(placed.image))
    if len(had):
        padded = converted.coverage.final_calls(placed.image).ends(converted.coverage.table)
        if not agree(had, converted.table, MAX_GAP, padded):
            raise elf.error(
                "already has an SFrame section, which says something else; objcopy -R .sframe -R .rela.sframe removes it"
            )
        return Prepared(Filled(elf, placed, had, []), sources, converted)
    table = encoder_of(placed.image, converted.coverage, converted.encoded, level._replace(share=False)).table
    return Prepared(Filled(elf, placed, table, pieces_of(elf, placed, table, converted.encoded)), sources, converted)


def write_object_of(filled: Filled, out: BinaryIO) -> None:
    """The object with its new sections, to an empty file."""
    if filled.pieces and filled.placed.symbol_table:
        write_object(filled.elf, filled.placed.symbol_table, filled.pieces, out)
    else:
        copy_file(filled.elf, out)


def check_object(filled: Filled, written: ElfFile) -> list[str]:
    """What is wrong with a written object: its sections are those of before, and the new ones say what they were made to say."""
    findings = []
    elf = filled.elf
    old = old_sections(elf)
    changed = {piece.group.number for piece in filled.pieces if piece.group} | {elf.shstrndx, 0} | old
    changed |= {group.number for number, group in groups(elf).items() if number in old}
    for before, after in zip(elf.sections, written.sections, strict=False):
        same = before.header == after.header and before.name == after.name
        if before.number not in changed and not same:
            findings.append(f"section {before.number} {before.name} has changed")
    if written.data[64 : len(elf.data)] != elf.data[64:]:
        findings.append("bytes of the original have changed")
    placed = place(written, abi_of(elf))
    moved = [one for one in zip(filled.placed.sections, placed.sections, strict=True) if one[0] != one[1]]
    address, lost = difference(filled.table, gather(tables_of(placed.image)))
    if moved or address is not None or lost:
        findings.append("the new sections say something else than they should")
    return findings


def tables_of(image: ElfFile) -> Iterator[FunctionTable]:
    """The functions of an object's SFrame sections; `image`: the object placed."""
    for section in image.sections:
        if section.header.sh_type == SHT_GNU_SFRAME and section.header.sh_size:
            yield decode(image.contents(section), section.header.sh_addr, image.name).table


class Objects(NamedTuple):
    """A file of objects: one, or an archive of them. `members`: each by the offset of its member's header, or the one at 0."""

    file: str
    data: memoryview
    members: dict[int, ElfFile]

    def prepare(self, layout: Layout, level: Level) -> dict[int, Prepared]:
        return {at: prepare(elf, layout, level) for at, elf in self.members.items()}

    def write(self, prepared: Mapping[int, Prepared], out: BinaryIO) -> None:
        """The file with its objects as they were prepared, to an empty file."""
        if not is_archive(self.data):
            write_object_of(prepared[0].filled, out)
            return
        contents = {}
        for at, one in prepared.items():
            buffer = io.BytesIO()
            write_object_of(one.filled, buffer)
            contents[at] = buffer.getvalue()
        out.writelines(rewritten(members(self.data, self.file), contents, self.file))

    def check(self, prepared: Mapping[int, Prepared], written: ElfFile | Objects) -> list[str]:
        """What is wrong with the file as it was written."""
        if isinstance(written, ElfFile) or len(written.members) != len(self.members):
            return ["other objects than before"]
        pairs = zip(self.members, written.members.values(), strict=True)
        return [
            f"{elf.name}: {finding}" for at, elf in pairs if at in prepared for finding in check_object(prepared[at].filled, elf)
        ]


def open_given(path: str) -> ElfFile | Objects:
    """What `given` makes of the file at `path`. Raises OSError, too."""
    return given(map_file(path)[0], path)


def given(data: memoryview, path: str, source: Source | None = None) -> ElfFile | Objects:
    """A linked ELF file, or what is not linked yet: an object or an archive. Raises FormatError."""
    if is_archive(data):
        return Objects(path, data, {at: elf for at, _, elf in objects_in(data, path)})
    elf = ElfFile(data, path, source.status, source.descriptor) if source else ElfFile(data, path)
    return Objects(path, data, {0: elf}) if elf.header.e_type == ET_REL else elf


def objects_in(data: memoryview, file: str) -> Iterator[tuple[int, str, ElfFile]]:
    """(offset of its header, its name, itself) of each object of an archive."""
    for member in members(data, file):
        if not member.is_special and bytes(member.contents[:4]) == b"\x7fELF":
            elf = ElfFile(member.contents, f"{file}({member.name})")
            if elf.header.e_type == ET_REL:
                yield member.at, member.name, elf
