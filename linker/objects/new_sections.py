"""The `.sframe` sections of a relocatable object: encoded, with their relocations, and written after everything else.

A section holds the functions that stay or go together: those of one section group, or all that are in none. Linkers drop a group
as a whole, and refuse a section outside of it that refers to what was dropped.
"""

from __future__ import annotations

from collections import defaultdict

from linker.inject.undo_record import Write
from linker.objects.function_places import start_relocation
from linker.objects.laid_out import Placed, groups, is_sframe, members_of
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.conversion.kernel_code import is_module
from sframegen.elf.ranges import align_up
from sframegen.elf.records import RELA_SIZE, SHF, SHN, SHT, UNUSED_SECTION, Rela, Shdr, pack_words, packed
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


def new_sections(elf: ElfFile, placed: Placed, table: FunctionTable, encoded: EncodedRules) -> list[NewSection]:
    """Return the new SFrame sections. `table`: functions at the addresses that `placed` gave them.

    The section for functions in no group comes last: when it collects garbage, GNU ld takes only the last of an object's sections
    for SFrame, and keeps all that others refer to. A kernel module gets one section: its loader knows no groups, and reads one.
    """
    group_of = {} if is_module(elf) else groups(elf)
    functions: dict[int, list[int]] = defaultdict(list)
    for function, start in enumerate(table.start):
        group = group_of.get(placed.section_at(start))
        functions[group.number if group else 0].append(function)
    tables = {number: table.select(functions[number]) for number in sorted(functions, reverse=True)}
    return [
        new_section(placed, Encoder(some, encoded.abi, encoded.layout, encoded=encoded), elf.sections[number])
        for number, some in tables.items()
    ]


def new_section(placed: Placed, encoder: Encoder, group: Section | None = None) -> NewSection:
    """Return the section with all functions of the encoder.

    No two functions may share rows: GNU ld makes room for as many bytes as the objects have, and then writes the rows of each
    function separately, over whatever follows.
    """
    if not is_module(placed.image):
        encoder.flags &= (
            ~F_FDE_SORTED
        )  # only the linker knows the order of addresses; a module's sections are loaded in their order
    return NewSection(group if group and group.number else None, encoder.encode_unplaced(), _relocations(encoder, placed))


def _relocations(encoder: Encoder, placed: Placed) -> bytes:
    """Return a relocation for each function start, against the symbol of its FDE's relocation."""
    layout = encoder.layout
    kind = start_relocation(encoder.abi.sframe_id, layout.start_width)
    found = []
    for function, start in enumerate(encoder.table.start):
        symbol, addend = placed.reference_to(start)
        found.append(Rela(HEADER_SIZE + function * layout.index_size, symbol << 32 | kind, addend))
    return packed(found, placed.image.byte_order)


def old_sections(elf: ElfFile) -> set[int]:
    """Return the section numbers of an object's SFrame sections and of their relocations."""
    old = {section.number for section in elf.sections if is_sframe(section)}
    return old | {table.number for number in old for table in elf.relocation_tables.get(number, ())}


def object_writes(elf: ElfFile, symbol_table: Section, sections: Sequence[NewSection]) -> list[Write]:
    """Return the writes that turn the original into the new object: the ELF header; after its end, new or grown sections and the
    section headers.

    SFrame sections that the object has are removed; new sections take their numbers first.
    """
    names = elf.sections[elf.shstrndx]
    headers = [section.header for section in elf.sections]
    old = old_sections(elf)
    free = sorted(old)
    for number in old:
        headers[number] = UNUSED_SECTION
    members = {group.number: members_of(elf, group) for number, group in groups(elf).items() if number in old}
    for numbers in members.values():
        numbers[1:] = [number for number in numbers[1:] if number not in old]
    sframe_name = names.header.sh_size
    rela_name = sframe_name + len(".sframe\0")
    chunks: list[Write] = []
    end = len(elf.data)

    def append(data: Bytes) -> int:
        """Return the file offset of `data`."""
        nonlocal end
        at = align_up(end, ALIGN)
        chunks.append(Write(at, bytes(data)))
        end = at + len(data)
        return at

    def new_number() -> int:
        """Return a free section number."""
        if free:
            return free.pop(0)
        headers.append(UNUSED_SECTION)
        return len(headers) - 1

    for section in sections:
        in_group = SHF.GROUP if section.group else 0
        raw = section.relocations
        number, relocations = new_number(), new_number()
        if section.group:
            members.setdefault(section.group.number, members_of(elf, section.group)).extend((number, relocations))
        headers[number] = Shdr(
            sframe_name, SHT.GNU_SFRAME, SHF.ALLOC | in_group, 0, append(section.contents), len(section.contents), 0, 0, ALIGN, 0
        )
        headers[relocations] = Shdr(
            rela_name, SHT.RELA, SHF.INFO_LINK | in_group, 0, append(raw), len(raw), symbol_table.number, number, ALIGN, RELA_SIZE
        )
    for group, numbers in members.items():
        data = pack_words(numbers, elf.byte_order)
        headers[group] = headers[group]._replace(sh_offset=append(data), sh_size=len(data))
    data = bytes(elf.slice(names.header.sh_offset, names.header.sh_size, "section names")) + b".sframe\0.rela.sframe\0"
    headers[names.number] = names.header._replace(sh_offset=append(data), sh_size=len(data))
    header = elf.header._replace(e_shnum=len(headers) if len(headers) < SHN.LORESERVE else 0)
    if header.e_shnum == 0:
        headers[0] = headers[0]._replace(sh_size=len(headers))
    header = header._replace(e_shoff=append(packed(headers, elf.byte_order)))
    return [Write(0, packed([header], elf.byte_order)), *chunks]
