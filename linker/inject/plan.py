"""The plan to add an `.sframe` section to a linked file: decided, and printable, before a byte is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cfi.errors import SframegenError
from linker.files.refusals import Refusal, RefusedError
from linker.inject import undo_record
from linker.inject.front_layout import front
from linker.inject.image import WORD, Image, read_image
from linker.inject.kernel_versions import SAFE_SINCE, Change
from linker.inject.layout import NoRoomError, no_room
from linker.inject.movable import MOVABLE_TAGS, PT_NULL
from linker.inject.tail_layout import tail
from linker.inject.unloaded_layout import unloaded
from sframegen.elf.file import ElfFile, Section
from sframegen.elf.ranges import align_up
from sframegen.elf.records import (
    EHDR_SIZE,
    PHDR_SIZE,
    PT_GNU_SFRAME,
    PT_LOAD,
    PT_NOTE,
    SHDR_SIZE,
    SHF_ALLOC,
    SHF_COMPRESSED,
    SHN_LORESERVE,
    SHT_NOBITS,
    SYM_SIZE,
    Phdr,
    Shdr,
)
from sframegen.elf.role import Role
from sframegen.elf.symbols import ST_VALUE_OFFSET, SymbolTable, symbol_tables

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from linker.inject.layout import Draft, Layout, Move

# patchelf relies on the order of the sections: if the first one has moved, it finds nothing in its way, and overwrites the
# second when it adds program headers: one for each run.
SPARE_HEADERS = 2
MAX_MOVED_FOR_SPARE = 1 << 20  # bytes
MAX_MOVED = 8 << 20  # bytes of a library's metadata; libLLVM's .dynsym, the largest seen, is 1.4 MB
MAX_SECTION = 1 << 40
MAX_SYMBOLS = 1 << 16  # in moved metadata; real files have a handful
NEW_TYPES = {PT_LOAD: "PT_LOAD", PT_GNU_SFRAME: "PT_GNU_SFRAME"}
SEGMENT_NAMES = NEW_TYPES | {PT_NULL: "PT_NULL", PT_NOTE: "PT_NOTE"}


class Patch(NamedTuple):
    """A 64-bit value that names moved metadata: a dynamic tag or a symbol; `offset` is its place in the new file."""

    name: str
    offset: int
    old: int
    new: int


class InjectionPlan(NamedTuple):
    """Offsets in the file and sizes in bytes, addresses as linked."""

    layout: Layout
    original_size: int
    section_offset: int
    section_address: int
    section_size: int  # in the file
    section_flags: int
    table_offset: int
    spare_size: int  # bytes after the table that are cleared
    segments: tuple[Phdr, ...]  # the new program header table
    new_segments: tuple[Phdr, ...]
    dropped_segments: tuple[Phdr, ...]
    moves: tuple[Move, ...]
    patches: tuple[Patch, ...]
    sections: tuple[Section, ...]  # the new section header table; empty if the original has none
    names_offset: int
    names_size: int
    new_names: str  # appended to the table of names
    section_table_offset: int
    undo_offset: int
    cleared: tuple[tuple[int, int], ...]  # (offset, size) of an earlier section, and of headers that named it

    def __str__(self) -> str:
        return "\n".join(describe(self))

    @property
    def is_loaded(self) -> bool:
        return bool(self.section_flags & SHF_ALLOC)

    @property
    def table_size(self) -> int:
        return len(self.segments) * PHDR_SIZE

    @property
    def size(self) -> int:
        """Size of the new file."""
        return self.undo_offset + undo_record.record_size(self.changed())

    def overwritten(self) -> list[tuple[int, int]]:
        """(offset, size) of every range of the original, without an earlier section, that is overwritten; ascending."""
        ranges = [(0, EHDR_SIZE)]
        ranges += [(self.table_offset, self.table_size + self.spare_size)] if self.is_loaded else []
        ranges += [(item.to_offset, item.size) for item in self.moves]
        ranges += [(patch.offset, 8) for patch in self.patches]
        return undo_record.overwritten(self.original_size, ranges)

    def changed(self) -> list[tuple[int, int]]:
        """The same with the ranges that are cleared before."""
        return undo_record.overwritten(self.original_size, [*self.overwritten(), *self.cleared])


def plan_injection(
    elf: ElfFile, section_size: int, cleared: Iterable[tuple[int, int]] = (), allowed: frozenset[Change] = frozenset()
) -> InjectionPlan:
    """Plan for a section of that size; its content does not matter. Raises RefusedError with the reason if it is impossible.

    `cleared`: (offset, size) of ranges cleared to make `elf`, which then is not the file that the undo record restores.
    `allowed`: the changes that only newer kernels accept.
    """
    check_size(elf, section_size)
    image = read_image(elf)
    risk = risk_of(image.role)
    if risk and Change.SEGMENT_IN_A_LOADER not in allowed:
        raise RefusedError(Refusal.DYNAMIC_LOADER, risk, file=elf.name)
    draft = choose(image, section_size, allowed)
    patches = (*tag_patches(image, draft), *symbol_patches(elf, draft))
    return complete(elf, draft, patches, tuple(cleared))


def plan_unloaded(elf: ElfFile, stored_size: int, flags: int, cleared: Iterable[tuple[int, int]] = ()) -> InjectionPlan:
    """Plan for a section that is not loaded, of that size in the file; the other parameters as for `plan_injection`.

    `flags`: SHF_COMPRESSED or 0.
    """
    check_size(elf, stored_size)
    return complete(elf, unloaded(elf, stored_size, flags), (), tuple(cleared))


def check_size(elf: ElfFile, section_size: int) -> None:
    if not 0 < section_size <= MAX_SECTION:
        raise elf.error(f"a section of {section_size} bytes")


def risk_of(role: Role) -> str:
    """Return the risk of a new segment in a dynamic loader, as text; "" for other files."""
    if role not in (Role.LOADER, Role.UNSURE):
        return ""
    since = SAFE_SINCE[Change.SEGMENT_IN_A_LOADER]
    return f"{role.value}: Linux before {since} starts no program with one that has a segment after its .bss"


def choose(image: Image, section_size: int, allowed: frozenset[Change]) -> Draft:
    drafts: list[Draft] = []
    for spare in (SPARE_HEADERS, 0):
        try:
            drafts.append(front(image, section_size, spare))
        except SframegenError as error:
            if not spare and not image.is_library:
                return tail_of_program(image, section_size, error, allowed)
    if not drafts or (image.is_library and drafts[-1].moved_size > MAX_MOVED):
        return tail(image, section_size)
    roomy, tight = drafts[0], drafts[-1]
    return roomy if roomy.moved_size <= tight.moved_size + MAX_MOVED_FOR_SPARE else tight


def tail_of_program(image: Image, section_size: int, reason: SframegenError, allowed: frozenset[Change]) -> Draft:
    """Raises `reason`, which rules out the front layout, if this layout is impossible as well, or is not allowed."""
    if not isinstance(reason, NoRoomError) or image.role is Role.LOADER:
        raise reason
    try:
        draft = tail(image, section_size)
    except NoRoomError:
        raise reason from None
    if Change.TABLE_AT_THE_END not in allowed:
        raise no_room(image, reason.why, Refusal.OLD_KERNELS)
    return draft


def complete(elf: ElfFile, draft: Draft, patches: tuple[Patch, ...], cleared: tuple[tuple[int, int], ...]) -> InjectionPlan:
    """What else follows from a layout: section headers, the end of the file."""
    added = [(".sframe", draft.section), *draft.covers] if elf.sections else []
    new_names = "".join(f"{name}\0" for name, _ in added)
    names_size = elf.sections[elf.shstrndx].header.sh_size + len(new_names) if added else 0
    section_table_offset = align_up(draft.end + names_size, 8) if added else 0
    sections = new_sections(elf, draft, added, names_size)
    return InjectionPlan(
        layout=draft.layout,
        original_size=len(elf.data),
        section_offset=draft.section.sh_offset,
        section_address=draft.section.sh_addr,
        section_size=draft.section.sh_size,
        section_flags=draft.section.sh_flags,
        table_offset=draft.table_offset,
        spare_size=draft.spare_size,
        segments=tuple(draft.segments),
        new_segments=tuple(
            segment
            for segment in draft.segments
            if segment.p_type in NEW_TYPES and segment.p_filesz and segment.p_offset >= len(elf.data)
        ),
        dropped_segments=tuple(draft.dropped),
        moves=tuple(draft.moves),
        patches=patches,
        sections=tuple(sections),
        names_offset=draft.end,
        names_size=names_size,
        new_names=new_names,
        section_table_offset=section_table_offset,
        undo_offset=section_table_offset + len(sections) * SHDR_SIZE if added else draft.end,
        cleared=cleared,
    )


def new_sections(elf: ElfFile, draft: Draft, added: list[tuple[str, Shdr]], names_size: int) -> list[Section]:
    """The old ones in their order, so that every index into the table stays valid; then the new ones."""
    sections = [section._replace(header=follow(section.header, draft.moves)) for section in elf.sections]
    if added:
        names = sections[elf.shstrndx]
        name_offset = names.header.sh_size
        sections[elf.shstrndx] = names._replace(header=names.header._replace(sh_offset=draft.end, sh_size=names_size))
        for name, header in added:
            sections.append(Section(len(sections), name, header._replace(sh_name=name_offset)))
            name_offset += len(name) + 1
    if len(sections) >= SHN_LORESERVE:  # more than fit into the ELF header, which then has 0
        sections[0] = sections[0]._replace(header=sections[0].header._replace(sh_size=len(sections)))
    return sections


def follow(header: Shdr, moves: list[Move]) -> Shdr:
    item = move_of(header, moves)
    if item is None:
        return header
    return header._replace(
        sh_addr=(header.sh_addr + item.to_address - item.from_address) % WORD,
        sh_offset=header.sh_offset + item.to_offset - item.from_offset,
    )


def move_of(header: Shdr, moves: list[Move]) -> Move | None:
    """Return the move that includes a section."""
    if header.sh_type == SHT_NOBITS or not header.sh_flags & SHF_ALLOC:
        return None
    return next((item for item in moves if item.holds(header.sh_offset, header.sh_size)), None)


def tag_patches(image: Image, draft: Draft) -> Iterator[Patch]:
    for entry in image.dynamic:
        for item in draft.moves:
            if entry.tag in MOVABLE_TAGS and 0 <= entry.value - item.from_address < item.size:
                yield Patch(MOVABLE_TAGS[entry.tag], entry.offset, entry.value, entry.value + item.to_address - item.from_address)


def symbol_patches(elf: ElfFile, draft: Draft) -> Iterator[Patch]:
    """Symbols of sections that move, in every symbol table, at the table's new place."""
    moved = {section.number: item for section in elf.sections if (item := move_of(section.header, draft.moves)) is not None}
    found = 0
    for section in (section for section in symbol_tables(elf) if moved and section.header.sh_entsize == SYM_SIZE):
        table = SymbolTable(elf, section, elf.stored(section))
        new_offset = follow(section.header, draft.moves).sh_offset
        for index in table.defined_in(moved.keys()):
            symbol = table[index]
            number = table.section_of(index, symbol)
            if number not in moved:
                continue
            item, holder = moved[number], elf.sections[number].header
            if not 0 <= symbol.st_value - holder.sh_addr <= holder.sh_size:
                continue  # GNU ld puts __ehdr_start into the first section, at an address outside it
            found += 1
            if found > MAX_SYMBOLS:
                raise elf.error(f"more than {MAX_SYMBOLS} symbols in metadata that would move", section.name)
            value = (symbol.st_value + item.to_address - item.from_address) % WORD
            yield Patch(f"{section.name}[{index}]", new_offset + index * SYM_SIZE + ST_VALUE_OFFSET, symbol.st_value, value)


def describe(plan: InjectionPlan) -> list[str]:
    """Return the plan as text, one fact a line."""
    place = f"address {plan.section_address:#x}" if plan.is_loaded else "not loaded"
    compressed = " of compressed contents" * bool(plan.section_flags & SHF_COMPRESSED)
    lines = [
        f"layout: {plan.layout}; file grows from {plan.original_size:#x} to {plan.size:#x} bytes",
        f".sframe: {place}, offset {plan.section_offset:#x}, {plan.section_size:#x} bytes{compressed}",
    ]
    lines += [f"new segment: {describe_segment(segment)}" for segment in plan.new_segments]
    lines += [f"segment given up: {describe_segment(segment)}" for segment in plan.dropped_segments]
    if plan.is_loaded:
        lines.append(f"program header table: {len(plan.segments)} entries at offset {plan.table_offset:#x}")
    lines += [
        f"moves: {', '.join(item.names)}, {item.size:#x} bytes, offset {item.from_offset:#x} -> {item.to_offset:#x}, "
        f"address {item.from_address:#x} -> {item.to_address:#x}"
        for item in plan.moves
    ]
    lines += [f"patched: {patch.name} at offset {patch.offset:#x}, {patch.old:#x} -> {patch.new:#x}" for patch in plan.patches]
    if plan.sections:
        lines.append(f"section header table: {len(plan.sections)} entries at offset {plan.section_table_offset:#x}")
    lines += [f"written over: {size:#x} bytes at offset {offset:#x}" for offset, size in plan.changed()]
    return lines


def describe_segment(segment: Phdr) -> str:
    name = SEGMENT_NAMES.get(segment.p_type, f"{segment.p_type:#x}")
    return f"{name}, address {segment.p_vaddr:#x}, offset {segment.p_offset:#x}, {segment.p_filesz:#x} bytes"
