"""Encodes the `.sframe` sections of a relocatable object with their relocations, and plans to write them at the object's end.

There is a section for the functions of each section group, and one for all other functions. Linkers drop a group as a whole, and
refuse a section outside of the group that refers to dropped code.
"""

from __future__ import annotations

from collections import defaultdict

from linker.inject.undo_record import Write
from linker.objects.function_places import start_relocation
from linker.objects.laid_out import LaidOutObject, is_sframe, map_members_to_groups, read_group
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.conversion.kernel_code import is_module
from sframegen.elf.ranges import align_up
from sframegen.elf.records import RELA_SIZE, SHF, SHN, SHT, UNUSED_SECTION, Rela, Shdr, pack_records, pack_words
from sframegen.format.encode import Encoder
from sframegen.format.layouts import F_FDE_SORTED, HEADER_SIZE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sframegen.base.columns import Bytes
    from sframegen.elf.file import ElfFile, Section
    from sframegen.format.model import FunctionTable
    from sframegen.format.words import EncodedRules

ALIGN = 8


class NewSection(NamedTuple):
    """A new SFrame section for an object. `group`: its section group, if any."""

    group: Section | None
    contents: memoryview
    relocations: bytes


def make_sections(elf: ElfFile, placed: LaidOutObject, table: FunctionTable, encoded: EncodedRules) -> list[NewSection]:
    """Return the new SFrame sections. `table`: functions at the addresses that `placed` gave them.

    The section for functions in no group comes last, because GNU ld's garbage collection treats only the last one as SFrame, and
    keeps all code that others refer to. A kernel module gets one section, because its loader ignores groups and reads only one.
    """
    group_of = {} if is_module(elf) else map_members_to_groups(elf)
    functions: dict[int, list[int]] = defaultdict(list)  # section number of a group, or 0 for no group -> its functions
    for function, start in enumerate(table.start):
        group = group_of.get(placed.section_at(start))
        functions[group.number if group else 0].append(function)
    tables = {number: table.select(functions[number]) for number in sorted(functions, reverse=True)}
    return [
        make_section(placed, Encoder(group_table, encoded.abi, encoded.layout, encoded=encoded), elf.sections[number])
        for number, group_table in tables.items()
    ]


def make_section(placed: LaidOutObject, encoder: Encoder, group: Section | None = None) -> NewSection:
    """Return the section with all functions of the encoder.

    Functions of the encoder must not share rows: GNU ld reserves as many bytes as the objects have, and then writes the rows of
    each function separately, which would overwrite other data.
    """
    if not is_module(placed.image):  # sections of modules are loaded in order; otherwise the linker may reorder functions
        encoder.flags &= ~F_FDE_SORTED
    return NewSection(group if group and group.number else None, encoder.encode_unplaced(), _make_relocations(encoder, placed))


def _make_relocations(encoder: Encoder, placed: LaidOutObject) -> bytes:
    """Return a relocation for each function start, which refers to the same symbol as its FDE if possible."""
    layout = encoder.layout
    kind = start_relocation(encoder.abi.sframe_id, layout.start_width)
    relocations = []
    for function, start in enumerate(encoder.table.start):
        symbol, addend = placed.symbol_and_addend(start)
        relocations.append(Rela(HEADER_SIZE + function * layout.index_size, symbol << 32 | kind, addend))
    return pack_records(relocations, placed.image.byte_order)


def numbers_of_old_sections(elf: ElfFile) -> set[int]:
    """Return the section numbers of an object's SFrame sections and of their relocations."""
    old = {section.number for section in elf.sections if is_sframe(section)}
    return old | {table.number for number in old for table in elf.relocation_tables.get(number, ())}


class _Additions:
    """The bytes to append to an object, and the object's new section headers, which refer to them."""

    def __init__(self, elf: ElfFile, old: set[int]) -> None:
        """Start with the headers of all sections. The numbers of the `old` sections are free."""
        self.headers = [UNUSED_SECTION if section.number in old else section.header for section in elf.sections]
        self.writes: list[Write] = []
        self._free = sorted(old)
        self._end = len(elf.data)

    def append(self, data: Bytes) -> int:
        """Append `data`, and return its file offset."""
        at = align_up(self._end, ALIGN)
        self.writes.append(Write(at, bytes(data)))
        self._end = at + len(data)
        return at

    def new_number(self) -> int:
        """Return a free section number."""
        if self._free:
            return self._free.pop(0)
        self.headers.append(UNUSED_SECTION)
        return len(self.headers) - 1

    def replace_contents(self, number: int, data: bytes) -> None:
        self.headers[number] = self.headers[number]._replace(sh_offset=self.append(data), sh_size=len(data))


def plan_object_writes(elf: ElfFile, symbol_table: Section, sections: Sequence[NewSection]) -> list[Write]:
    """Return the writes that turn the original into the new object: of the ELF header, and of new sections and headers at its end.

    SFrame sections of the original are removed, and new sections take their numbers first.
    """
    old = numbers_of_old_sections(elf)
    added = _Additions(elf, old)
    members = {group.number: read_group(elf, group) for number, group in map_members_to_groups(elf).items() if number in old}
    for numbers in members.values():
        numbers[1:] = [number for number in numbers[1:] if number not in old]
    names = elf.sections[elf.shstrndx]
    sframe_name = names.header.sh_size
    rela_name = sframe_name + len(".sframe\0")
    for group, contents, relocations in sections:
        in_group = SHF.GROUP if group else 0
        number, rela = added.new_number(), added.new_number()
        if group:
            members.setdefault(group.number, read_group(elf, group)).extend((number, rela))
        offset, size = added.append(contents), len(contents)
        added.headers[number] = Shdr(sframe_name, SHT.GNU_SFRAME, SHF.ALLOC | in_group, 0, offset, size, 0, 0, ALIGN, 0)
        offset, size, flags = added.append(relocations), len(relocations), SHF.INFO_LINK | in_group
        added.headers[rela] = Shdr(rela_name, SHT.RELA, flags, 0, offset, size, symbol_table.number, number, ALIGN, RELA_SIZE)
    for number, numbers in members.items():
        added.replace_contents(number, pack_words(numbers, elf.byte_order))
    old_names = bytes(elf.slice(names.header.sh_offset, names.header.sh_size, "section names"))
    added.replace_contents(names.number, old_names + b".sframe\0.rela.sframe\0")
    count = len(added.headers)
    if count >= SHN.LORESERVE:  # too large for e_shnum, which is then 0; the first section header has the count
        added.headers[0] = added.headers[0]._replace(sh_size=count)
    table = added.append(pack_records(added.headers, elf.byte_order))
    header = elf.header._replace(e_shnum=count if count < SHN.LORESERVE else 0, e_shoff=table)
    return [Write(0, pack_records([header], elf.byte_order)), *added.writes]
