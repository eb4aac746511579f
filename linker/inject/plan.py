"""Plans how to add an `.sframe` section to a linked file. The plan is complete and printable before a byte is written.

The outline: read the image; choose a layout, which says where the section and the program header table go (layout.py); find the
dynamic tags and symbols that must follow moved metadata; make the new section header table, and put the undo record at the end.
"""

from __future__ import annotations

from contextlib import suppress

from linker.files.copying import FilePart
from linker.inject import undo_record
from linker.inject.before_layout import can_insert_pages, draft_before_layout
from linker.inject.front_layout import draft_front_layout
from linker.inject.gaps import Gaps, split_at_gaps, to_new_offset
from linker.inject.image import Image, read_image
from linker.inject.kernel_versions import KernelChange
from linker.inject.layout import Layout, LayoutDraft, Move, NoRoomError, draft_tail_layout, draft_unloaded_layout, no_room_error
from linker.inject.movable import MOVABLE_TAGS, SEGMENT_NAMES, TAG_NAMES
from linker.inject.section_table import NO_TABLE, Patch, make_section_table, symbol_value_patches
from sframegen.base.errors import Refusal, RefusedError, SframegenError
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.elf.dynamic import Role
from sframegen.elf.ranges import align_up
from sframegen.elf.records import EHDR_SIZE, PHDR_SIZE, SHDR_SIZE, SHF, Phdr

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sframegen.elf.file import ElfFile, Section

# Room in the table for patchelf, which adds one program header in each run. It relies on the order of sections: if the first one
# has moved, it would overwrite the second one.
SPARE_HEADERS = 2
MAX_MOVED_BYTES_FOR_SPARE = 1 << 20  # bytes that may move in addition to make room for SPARE_HEADERS
MAX_MOVED_BYTES = 8 << 20  # bytes of a library's metadata; libLLVM's .dynsym, the largest seen, is 1.4 MB
MAX_SECTION_BYTES = 1 << 40


class InjectionPlan(NamedTuple):
    """A complete plan to add a section. Offsets are those in the new file, sizes are in bytes, addresses are as linked."""

    layout: Layout
    gaps: Gaps
    original_size: int
    section_offset: int  # of `.sframe`, as are the next three
    section_address: int
    section_size: int
    section_flags: int
    table_offset: int  # of the program header table
    spare_size: int  # bytes to clear after the program header table
    segments: tuple[Phdr, ...]  # the new program header table
    new_segments: tuple[Phdr, ...]
    dropped_segments: tuple[Phdr, ...]
    moves: tuple[Move, ...]
    patches: tuple[Patch, ...]
    sections: tuple[Section, ...]  # the new section header table; empty if the original has none
    added: tuple[int, ...]  # numbers of the new sections
    names_number: int  # number of the section with the section names
    names_offset: int
    names_size: int
    new_names: str  # appended to the section names
    section_table_offset: int
    undo_offset: int
    cleared: tuple[tuple[int, int], ...]  # (offset, size) of a removed earlier section and of the headers that named it

    def __str__(self) -> str:
        return "\n".join(describe_plan(self))

    @property
    def is_loaded(self) -> bool:
        return bool(self.section_flags & SHF.ALLOC)

    @property
    def table_size(self) -> int:
        return len(self.segments) * PHDR_SIZE

    @property
    def size(self) -> int:
        """Return the size of the new file."""
        return self.undo_offset + undo_record.compute_record_size(self.changed(), self.gaps)

    def overwritten(self) -> list[tuple[int, int]]:
        """Return (offset, size) of each overwritten range of the original, ascending, without the `cleared` ones."""
        return undo_record.find_overwritten_ranges(self.original_size, self._written(), self.gaps)

    def changed(self) -> list[tuple[int, int]]:
        """Return (offset, size) of each overwritten or cleared range of the original, ascending."""
        cleared = [(part.to, part.size) for part in split_at_gaps(self.gaps, [FilePart(at, at, size) for at, size in self.cleared])]
        return undo_record.find_overwritten_ranges(self.original_size, [*self._written(), *cleared], self.gaps)

    def _written(self) -> list[tuple[int, int]]:
        """Return (offset, size) of all that is written; `find_overwritten_ranges` drops what the original has no bytes for."""
        ranges = [(0, EHDR_SIZE)]
        ranges += [(self.table_offset, self.table_size + self.spare_size)] if self.is_loaded else []
        ranges += [(item.to_offset, item.size) for item in self.moves]
        return ranges + [(patch.offset, patch.size) for patch in self.patches]


def plan_injection(
    elf: ElfFile, section_size: int, cleared: Iterable[tuple[int, int]] = (), allowed: frozenset[KernelChange] = frozenset()
) -> InjectionPlan:
    """Plan to add a loaded section of that size. Raises RefusedError with the reason if that is impossible.

    `cleared`: (offset, size) of ranges in which `elf` differs from the file that the undo record restores.
    `allowed`: the changes that may be made although only newer kernels accept them.
    """
    check_size(elf, section_size)
    image = read_image(elf)
    draft = choose_layout(image, section_size, allowed)
    risk = describe_loader_risk(image.role)
    if risk and KernelChange.SEGMENT_IN_A_LOADER not in allowed:
        raise RefusedError(Refusal.DYNAMIC_LOADER, risk, file=elf.name)
    patches = (*tag_patches(image, draft), *symbol_value_patches(elf, draft))
    return make_plan(elf, draft, patches, tuple(cleared))


def plan_unloaded(elf: ElfFile, section_size: int, cleared: Iterable[tuple[int, int]] = ()) -> InjectionPlan:
    """Plan to add an unloaded section of that size; other parameters as for `plan_injection`."""
    check_size(elf, section_size)
    return make_plan(elf, draft_unloaded_layout(elf, section_size), (), tuple(cleared))


def check_size(elf: ElfFile, section_size: int) -> None:
    if not 0 < section_size <= MAX_SECTION_BYTES:
        raise elf.error(f"a section of {section_size} bytes")


def describe_loader_risk(role: Role) -> str:
    """Return in words why older kernels may not start programs with this loader after the change; "" for other files."""
    if role not in (Role.LOADER, Role.UNSURE):
        return ""
    since = KernelChange.SEGMENT_IN_A_LOADER.value
    return f"{role.value}: Linux before {since} cannot start programs with a loader that has a segment after its .bss"


def choose_layout(image: Image, section_size: int, allowed: frozenset[KernelChange]) -> LayoutDraft:
    """Draft the first layout that fits: before, front with or without spare headers, tail. Raises RefusedError if none does."""
    if can_insert_pages(image):
        with suppress(NoRoomError):
            return draft_before_layout(image, section_size)
    drafts: list[LayoutDraft] = []
    for spare in (SPARE_HEADERS, 0):
        try:
            drafts.append(draft_front_layout(image, section_size, spare))
        except SframegenError as error:
            if not spare and not image.is_library:  # in programs, only newer kernels accept the tail layout
                return draft_tail_of_program(image, section_size, error, allowed)
    if not drafts or (image.is_library and drafts[-1].moved_size > MAX_MOVED_BYTES):
        return draft_tail_layout(image, section_size)
    with_spare, without_spare = drafts[0], drafts[-1]  # the same if only one fits
    return with_spare if with_spare.moved_size <= without_spare.moved_size + MAX_MOVED_BYTES_FOR_SPARE else without_spare


def draft_tail_of_program(image: Image, section_size: int, reason: SframegenError, allowed: frozenset[KernelChange]) -> LayoutDraft:
    """Draft the tail layout. If that is impossible or not allowed, raises `reason`, which ruled out the front layout."""
    if not isinstance(reason, NoRoomError) or image.role is Role.LOADER:
        raise reason
    try:
        draft = draft_tail_layout(image, section_size)
    except NoRoomError:
        raise reason from None
    if KernelChange.TABLE_AT_THE_END not in allowed:
        raise no_room_error(image, reason.why, Refusal.OLD_KERNELS)
    return draft


def make_plan(elf: ElfFile, draft: LayoutDraft, patches: tuple[Patch, ...], cleared: tuple[tuple[int, int], ...]) -> InjectionPlan:
    """Return the plan that follows from a layout, with section headers and the end of the file."""
    table = make_section_table(elf, draft) if elf.sections else NO_TABLE
    section_table_offset = align_up(draft.end + table.names_size, 8) if elf.sections else 0
    return InjectionPlan(
        layout=draft.layout, gaps=draft.gaps, original_size=len(elf.data),
        section_offset=draft.section.sh_offset, section_address=draft.section.sh_addr,
        section_size=draft.section.sh_size, section_flags=draft.section.sh_flags,
        table_offset=draft.table_offset, spare_size=draft.spare_size,
        segments=tuple(draft.segments), new_segments=tuple(draft.new_segments), dropped_segments=tuple(draft.dropped),
        moves=tuple(draft.moves), patches=(*patches, *table.patches),
        sections=tuple(table.sections), added=table.added, section_table_offset=section_table_offset,
        names_number=table.names_number, names_offset=draft.end, names_size=table.names_size, new_names=table.new_names,
        undo_offset=section_table_offset + len(table.sections) * SHDR_SIZE if elf.sections else draft.end, cleared=cleared,
    )  # fmt: skip


def tag_patches(image: Image, draft: LayoutDraft) -> Iterator[Patch]:
    """Yield patches for dynamic tags that point to moved metadata."""
    for entry in image.dynamic:
        for item in draft.moves:
            if entry.tag in MOVABLE_TAGS and 0 <= entry.value - item.from_address < item.size:
                new = entry.value + item.to_address - item.from_address
                yield Patch(TAG_NAMES[entry.tag], to_new_offset(draft.gaps, entry.offset), entry.value, new)


def describe_plan(plan: InjectionPlan) -> list[str]:
    """Return the plan as lines of text, one fact each."""
    address = f"address {plan.section_address:#x}" if plan.is_loaded else "not loaded"
    lines = [
        f"layout: {plan.layout}; file grows from {plan.original_size:#x} to {plan.size:#x} bytes",
        f".sframe: {address}, offset {plan.section_offset:#x}, {plan.section_size:#x} bytes",
    ]
    lines += [f"new segment: {describe_segment(segment)}" for segment in plan.new_segments]
    lines += [f"gap: {size:#x} bytes before the original's offset {at:#x}" for at, size in plan.gaps]
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
