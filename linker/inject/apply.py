"""Writes the file that a plan describes: a copy of the original in which gaps are opened, then bytes at offsets of the new file."""

from __future__ import annotations

from linker.files.copying import FilePart, copy_file
from linker.inject import undo_record
from linker.inject.gaps import Gaps, split_at_gaps, to_new_offset
from linker.inject.undo_record import Write
from sframegen.base.quick_typing import TYPE_CHECKING, BinaryIO, NamedTuple
from sframegen.elf.records import SHN, pack_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from linker.inject.plan import InjectionPlan
    from sframegen.elf.file import ElfFile


class Change(NamedTuple):
    """A change that turns an original into a new file: first open gaps, then write bytes at offsets in the new file."""

    writes: Sequence[Write]
    gaps: Gaps = ()


def write_changed_file(
    elf: ElfFile,
    change: Change,
    out: BinaryIO,
    record: undo_record.UndoRecord | None = None,
    copy: Callable[[ElfFile, BinaryIO, Sequence[FilePart]], None] = copy_file,
) -> None:
    """Write the changed file to `out`, which is empty: a copy of `elf`, or of the original that `record` restores, then changes.

    `copy`: copies parts of a file, like `copy_file`. The caller syncs `out` and sets its mode.
    """
    gaps = change.gaps
    copy(elf, out, split_at_gaps(gaps, record.parts if record else [FilePart(0, 0, len(elf.data))]))
    restored = (Write(offset, data) for offset, data in record.overwritten) if record else ()
    for offset, data in (*relocate_writes(gaps, restored), *change.writes):
        out.seek(offset)
        out.write(data)


def relocate_writes(gaps: Gaps, writes: Iterable[Write]) -> Iterator[Write]:
    """Yield writes at offsets in the original as writes at offsets in the new file, split at gaps."""
    for offset, data in writes:
        for start, to, size in split_at_gaps(gaps, [FilePart(0, offset, len(data))]):
            yield Write(to, data[start : start + size])


def make_injection_change(
    plan: InjectionPlan, elf: ElfFile, section: bytes | memoryview, given: ElfFile | None = None, cleared: Iterable[Write] = ()
) -> Change:
    """Return the change that adds the section to `elf`; its last write is the undo record.

    If `cleared` is given, `elf` is the file `given` with these writes, and the change applies to `given` instead.
    """
    if len(section) != plan.section_size:
        raise ValueError(f"plan is for {plan.section_size} bytes, section has {len(section)}")
    header, table_writes = elf.header, []
    if header.e_shoff and not plan.sections:  # the header has an offset of section headers, but their count is 0
        header = header._replace(e_shoff=to_new_offset(plan.gaps, header.e_shoff))
    if plan.is_loaded:
        header = header._replace(e_phoff=plan.table_offset, e_phnum=len(plan.segments))
        table_writes = [Write(plan.table_offset, pack_records(plan.segments, elf.byte_order) + bytes(plan.spare_size))]
    if plan.sections:
        count = len(plan.sections)
        header = header._replace(e_shoff=plan.section_table_offset, e_shnum=count if count < SHN.LORESERVE else 0)
        if header.e_shstrndx == elf.shstrndx:
            header = header._replace(e_shstrndx=plan.names_number)
    writes = [
        *relocate_writes(plan.gaps, cleared),
        Write(0, pack_records([header], elf.byte_order)),
        *table_writes,
        *(Write(item.to_offset, elf.data[item.from_offset : item.from_offset + item.size]) for item in plan.moves),
        *(Write(patch.offset, patch.new.to_bytes(patch.size, elf.byte_order)) for patch in plan.patches),
        Write(plan.section_offset, section),
        *(section_table_writes(plan, elf) if plan.sections else ()),
    ]
    record = undo_record.make_record((given or elf).data, writes, plan.gaps, plan.undo_offset)
    return Change([*writes, Write(plan.undo_offset, record)], plan.gaps)


def section_table_writes(plan: InjectionPlan, elf: ElfFile) -> Iterator[Write]:
    """Yield the writes of the section names and of the section header table after them."""
    names = elf.sections[elf.shstrndx].header
    yield Write(plan.names_offset, elf.slice(names.sh_offset, names.sh_size, "section names"))
    yield Write(plan.names_offset + names.sh_size, plan.new_names.encode())
    yield Write(plan.section_table_offset, pack_records([section.header for section in plan.sections], elf.byte_order))
