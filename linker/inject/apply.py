"""Writes the file that a plan describes: a copy of the original, then the changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

from linker.files.copying import copy_file
from linker.inject import undo_record
from linker.inject.undo_record import Write
from sframegen.elf.records import SHN_LORESERVE, packed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from linker.inject.plan import InjectionPlan
    from sframegen.elf.file import ElfFile


def write_all(
    elf: ElfFile,
    writes: Iterable[Write],
    out: BinaryIO,
    record: undo_record.Undo | None = None,
    copy: Callable[[ElfFile, BinaryIO], None] = copy_file,
) -> None:
    """Write the file, or the original that `record` restores, to `out`, a file for `copy`; then these writes.

    `out` is not synced, and its mode not set.
    """
    copy(elf, out)
    if record is not None:
        record.restore(out)
    for offset, data in writes:
        out.seek(offset)
        out.write(data)


def writes_of(
    plan: InjectionPlan,
    elf: ElfFile,
    section: bytes | memoryview,
    given: ElfFile | None = None,
    cleared: Iterable[Write] = (),
) -> list[Write]:
    """Return all writes that make the new file, in order; the last is the record.

    They apply to the original; with `cleared`, which turns `given` into the original, to `given`.
    """
    if len(section) != plan.section_size:
        raise ValueError(f"plan is for {plan.section_size} bytes, section has {len(section)}")
    header, table = elf.header, []
    if plan.is_loaded:
        header = header._replace(e_phoff=plan.table_offset, e_phnum=len(plan.segments))
        table = [Write(plan.table_offset, packed(plan.segments, elf.byte_order) + bytes(plan.spare_size))]
    if plan.sections:
        count = len(plan.sections)
        header = header._replace(e_shoff=plan.section_table_offset, e_shnum=count if count < SHN_LORESERVE else 0)
    writes = [
        *cleared,
        Write(0, packed([header], elf.byte_order)),
        *table,
        *(Write(item.to_offset, elf.data[item.from_offset : item.from_offset + item.size]) for item in plan.moves),
        *(Write(patch.offset, patch.new.to_bytes(8, elf.byte_order)) for patch in plan.patches),
        Write(plan.section_offset, section),
        *(section_writes(plan, elf) if plan.sections else ()),
    ]
    return [*writes, Write(plan.undo_offset, undo_record.record((given or elf).data, writes))]


def section_writes(plan: InjectionPlan, elf: ElfFile) -> Iterator[Write]:
    """The section header table, and the names before it."""
    names = elf.sections[elf.shstrndx].header
    yield Write(plan.names_offset, elf.slice(names.sh_offset, names.sh_size, "section names"))
    yield Write(plan.names_offset + names.sh_size, plan.new_names.encode())
    yield Write(plan.section_table_offset, packed([section.header for section in plan.sections], elf.byte_order))
