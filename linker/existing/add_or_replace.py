"""Adds an SFrame section to a linked file, or replaces its existing one."""

from __future__ import annotations

from linker.existing.in_place import Exchange, find_own_loads, find_sframe_extents, find_slot, plan_exchange
from linker.existing.original import map_with_writes, restore_original
from linker.existing.take_out import plan_removal
from linker.files.copying import FilePart
from linker.inject.apply import Change, make_injection_change
from linker.inject.kernel_versions import KernelChange
from linker.inject.layout import UNLOADED_ADDRESS
from linker.inject.plan import InjectionPlan, plan_injection, plan_unloaded
from linker.inject.undo_record import UndoRecord, Write, merge_writes
from sframegen.base.errors import FormatError, SframegenError
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.elf.records import PT, SHT
from sframegen.format.locate import find_unloaded_section

if TYPE_CHECKING:
    from sframegen.elf.file import ElfFile
    from sframegen.format.encode import Encoder


def has_same_unloaded_section(elf: ElfFile, contents: memoryview) -> bool:
    """Return True if the file already has this section, not loaded and not compressed."""
    section = find_unloaded_section(elf)
    if section is None or (section.header.sh_flags, section.header.sh_addr) != (0, UNLOADED_ADDRESS):
        return False
    try:
        return elf.contents(section).tobytes() == contents.tobytes()
    except FormatError:  # a damaged section has to be replaced
        return False


class Base(NamedTuple):
    """The file to add a section to: `elf` is `given` after the writes of `cleared`, which remove its section, if any."""

    given: ElfFile  # the file that is restored when the new section is removed
    elf: ElfFile
    cleared: list[Write]
    record: UndoRecord | None  # the record that turns the file that was read into `given`; None if they are the same

    @property
    def cleared_ranges(self) -> list[tuple[int, int]]:
        return [(offset, len(data)) for offset, data in self.cleared]


def find_base(elf: ElfFile) -> Base:
    """Choose the file to change: the original that its undo record restores, if it has one, else the file itself."""
    original = restore_original(elf) if find_sframe_extents(elf) else None
    given, record = original or (elf, None)
    if not find_sframe_extents(given):
        return Base(given, given, [], record)
    cleared = plan_removal(given).writes
    parts, restored = (record.parts, record.overwritten) if record else ([FilePart(0, 0, len(given.data))], [])
    return Base(given, map_with_writes(elf, parts, [*restored, *cleared]), cleared, record)


def plan_section(
    base: Base, encoder: Encoder, allowed: frozenset[KernelChange], unloaded: memoryview | None = None
) -> InjectionPlan | Exchange:
    """Plan to write a section over the existing one if it fits, else at the end of the file. Raises RefusedError if both fail.

    `allowed`: the changes that may be made although only newer kernels accept them. `unloaded`: the bytes of a section that is
    not loaded, which always goes to the end of the file.
    """
    if unloaded is not None:
        return plan_unloaded(base.elf, len(unloaded), base.cleared_ranges)
    if base.cleared:
        try:
            return plan_in_place(base.given, encoder)
        except SframegenError:
            pass
    return plan_injection(base.elf, encoder.size_bytes, base.cleared_ranges, allowed)


def find_kernel_changes(elf: ElfFile) -> frozenset[KernelChange]:
    """Return the changes of the file that only newer kernels accept. A new section may make them again: it loses no kernel."""
    first_load_end = next((load.p_offset + load.p_filesz for load in elf.segments if load.p_type == PT.LOAD), 0)
    has_table_at_the_end = elf.header.e_phoff >= first_load_end
    changes = {KernelChange.TABLE_AT_THE_END: has_table_at_the_end, KernelChange.SEGMENT_IN_A_LOADER: bool(find_own_loads(elf))}
    return frozenset(change for change, is_made in changes.items() if is_made)


def plan_in_place(elf: ElfFile, encoder: Encoder) -> Exchange:
    """Plan to overwrite the existing section. Raises SframegenError if the new one does not fit, or there are several."""
    slot = find_slot(elf)
    types = [elf.sections[number].header.sh_type for number in slot.sections]
    expected_types = [SHT.GNU_SFRAME] if elf.sections else []  # a file without section headers only has the segment
    if len(slot.segments) != 1 or types != expected_types:
        raise elf.error("the SFrame section is not in one PT_GNU_SFRAME")
    return plan_exchange(elf, slot, encoder.encode(slot.address), new_record=True)


def make_change(plan: InjectionPlan | Exchange, base: Base, encoder: Encoder) -> Change:
    """Return the change that turns `base.given` into the new file. Its last write is the undo record."""
    if isinstance(plan, Exchange):
        return Change(plan.writes)
    return make_injection_change(plan, base.elf, encoder.encode(plan.section_address), base.given, base.cleared)


def has_change(elf: ElfFile, base: Base, change: Change) -> bool:
    """Return True if the file already has all bytes of the change. A file that has no undo record does not need one."""
    if change.gaps != (base.record.gaps if base.record else ()):
        return False
    needed = merge_writes(change.writes if base.given is not elf else change.writes[:-1])  # the last one is the undo record
    return all(elf.data[offset : offset + len(data)].tobytes() == data for offset, data in needed)
