"""Adds a section to a linked file: to the file before it had one, or in the place of the one that it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cfi.errors import SframegenError
from linker.existing.find_section import extents, find_place
from linker.existing.original import altered, original_of
from linker.existing.overwrite import Exchange, plan_exchange
from linker.existing.take_out import plan_removal
from linker.inject.apply import writes_of
from linker.inject.plan import InjectionPlan, plan_injection
from linker.inject.undo_record import contents
from sframegen.elf.records import SHT_GNU_SFRAME

if TYPE_CHECKING:
    from linker.inject.kernel_versions import Change
    from linker.inject.undo_record import Undo, Write
    from sframegen.elf.file import ElfFile
    from sframegen.format.encode import Encoder


class Base(NamedTuple):
    """`elf` without a section is `given` after the writes of `cleared`: none, where `given` has no section."""

    given: ElfFile  # the file that removing the new section restores
    elf: ElfFile
    cleared: list[Write]
    record: Undo | None  # turns the file that was read into `given`; None: they are the same

    @property
    def cleared_ranges(self) -> list[tuple[int, int]]:
        return [(offset, len(data)) for offset, data in self.cleared]


def base_of(elf: ElfFile) -> Base:
    """Start from the original that the file's record restores, if it has one; else from the file itself."""
    original = original_of(elf) if extents(elf) else None
    given, record = original or (elf, None)
    if not extents(given):
        return Base(given, given, [], record)
    cleared = plan_removal(given).writes
    restored = record.old if record else []
    return Base(given, altered(elf, len(given.data), [*restored, *cleared]), cleared, record)


def plan_section(base: Base, encoder: Encoder, allowed: frozenset[Change] = frozenset()) -> InjectionPlan | Exchange:
    """In the place of an existing section if it fits, else after the file's end. Raises RefusedError if neither is possible.

    `allowed`: the changes that only newer kernels accept.
    """
    if base.cleared:
        try:
            return plan_in_place(base.given, encoder)
        except SframegenError:
            pass
    return plan_injection(base.elf, encoder.size_bytes, base.cleared_ranges, allowed)


def plan_in_place(elf: ElfFile, encoder: Encoder) -> Exchange:
    """Raises SframegenError where it does not fit, or would not be the one section that all headers speak of."""
    place = find_place(elf)
    kinds = [elf.sections[number].header.sh_type for number in place.sections]
    if len(place.segments) != 1 or kinds != [SHT_GNU_SFRAME] * bool(elf.sections):
        raise elf.error("the SFrame section is not in one PT_GNU_SFRAME")
    return plan_exchange(elf, place, encoder.encode(place.address), new_record=True)


def all_writes(plan: InjectionPlan | Exchange, base: Base, encoder: Encoder) -> list[Write]:
    """Return all writes that turn `base.given` into the new file; the last is the record."""
    if isinstance(plan, Exchange):
        return plan.writes
    return writes_of(plan, base.elf, memoryview(encoder.encode(plan.section_address)), base.given, base.cleared)


def is_written(elf: ElfFile, base: Base, writes: list[Write]) -> bool:
    """True if the file has all these bytes already; a file without a record needs none."""
    needed = contents(writes if base.given is not elf else writes[:-1])
    return all(elf.data[offset : offset + len(data)].tobytes() == data for offset, data in needed)
