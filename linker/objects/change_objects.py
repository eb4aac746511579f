"""Adds SFrame sections to relocatable objects, and removes them again."""

from __future__ import annotations

from functools import partial

from linker.files.copying import copy_file
from linker.inject import undo_record
from linker.inject.apply import Change, write_changed_file
from linker.inject.undo_record import UndoRecord, Write
from linker.objects.laid_out import LaidOutObject, is_sframe, lay_out, map_members_to_groups, place_debug_file
from linker.objects.new_sections import NewSection, make_sections, numbers_of_old_sections, plan_object_writes
from sframegen.base.errors import DIFFERENT_SECTION, FormatError, Refusal, RefusedError
from sframegen.base.quick_typing import TYPE_CHECKING, BinaryIO, NamedTuple
from sframegen.elf.file import ElfFile
from sframegen.elf.records import EHDR_SIZE, ET
from sframegen.format.abi import abi_of
from sframegen.format.decode import SframeSection, decode
from sframegen.tables.compare import find_difference, have_same_rules
from sframegen.tables.gather import concatenate_tables
from sframegen.tables.optimize import MAX_GAP

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sframegen.conversion.cfi_sections import Sources
    from sframegen.conversion.convert import Converted
    from sframegen.format.layouts import Layout
    from sframegen.format.model import FunctionTable
    from sframegen.tables.levels import Level


class ObjectChange(NamedTuple):
    """An object and the SFrame sections that it gets. Without new sections, the object is not changed."""

    elf: ElfFile  # the file that was read
    base: ElfFile  # the original if add-section wrote `elf`, else `elf` itself; the new object's undo record restores it
    record: UndoRecord | None  # the record that turns `elf` into `base`; None if they are the same
    placed: LaidOutObject  # `base`, laid out in memory
    table: FunctionTable  # the functions of the sections, at the addresses in `placed`
    sections: list[NewSection]
    undoable: bool = True  # the new object gets an undo record

    def writes(self) -> list[Write]:
        """Return the writes that turn the base into the new object; none if it is unchanged."""
        if not self.sections or not self.placed.symbol_table:
            return []
        writes = plan_object_writes(self.base, self.placed.symbol_table, self.sections)
        end = max(write.offset + len(write.data) for write in writes)
        return [*writes, *([Write(end, undo_record.make_record(self.base.data, writes))] if self.undoable else [])]


class ConvertedObject(NamedTuple):
    """An object with SFrame sections that were converted from its own call frame information."""

    change: ObjectChange
    sources: Sources
    converted: Converted


def convert_object(elf: ElfFile, layout: Layout, level: Level, *, replace: bool, debug_file: Path | None = None) -> ConvertedObject:
    """Convert the object's CFI to SFrame sections, unless its SFrame sections already have the same rules.

    `debug_file`: a separate debug file, for code that `.eh_frame` does not describe. Raises RefusedError if existing sections have
    other rules, unless `replace` is set.
    """
    from sframegen.conversion.cfi_sections import find_sources  # noqa: PLC0415
    from sframegen.conversion.convert import convert_sources  # noqa: PLC0415 - merges do not need the converter

    abi = abi_of(elf)
    base, record = restore_object(elf) or (elf, None)
    placed = lay_out(base, abi)
    sources = find_sources(placed.image, debug_file, partial(place_debug_file, of=placed))
    converted = convert_sources(sources, placed.image.executable_ranges(), abi, layout)
    table = converted.table
    if len(table):
        table = converted.make_encoder(placed.image, level._replace(share=False)).table
    existing = list(decode_sections(placed.image if base is elf else lay_out(elf, abi).image))
    sections: list[NewSection] = []
    if len(table):
        described = concatenate_tables(section.table for section in existing)
        padding_ends = converted.coverage.final_calls(placed.image).padding_ends(converted.table)
        same_version = {section.header.version for section in existing} == {layout.version}
        if same_version and have_same_rules(described, converted.table, MAX_GAP, padding_ends):
            table = described  # the existing sections, whose rules for padding may differ
        elif existing and not replace:
            raise RefusedError(Refusal.OTHER_SECTION, DIFFERENT_SECTION, file=elf.name)
        else:
            sections = make_sections(base, placed, table, converted.encoded)
    return ConvertedObject(ObjectChange(elf, base, record, placed, table, sections), sources, converted)


def write_object(change: ObjectChange, out: BinaryIO) -> None:
    """Write the object with its new sections to an empty file."""
    writes = change.writes()
    if writes:
        write_changed_file(change.elf, Change(writes), out, record=change.record)
    else:
        copy_file(change.elf, out)


def check_object(change: ObjectChange, written: ElfFile) -> list[str]:
    """Return findings about a written object: whether other sections changed, or new sections differ from the planned ones."""
    if not change.sections:
        return [] if written.data == change.elf.data else ["an object that already has the section has changed"]
    findings = []
    base = change.base
    old = numbers_of_old_sections(base)
    # Sections that may change: groups with new members or without old ones, section names, header 0, and the old sections.
    changed = {new.group.number for new in change.sections if new.group} | {base.shstrndx, 0} | old
    changed |= {group.number for number, group in map_members_to_groups(base).items() if number in old}
    for section, new in zip(base.sections, written.sections, strict=False):
        if section.number not in changed and section != new:
            findings.append(f"section {section.number} {section.name} has changed")
    if written.data[64 : len(base.data)] != base.data[64:]:
        findings.append("bytes of the original have changed")
    placed = lay_out(written, abi_of(base))
    before, after = ([code for code in laid_out.sections if code[2] not in old] for laid_out in (change.placed, placed))
    address, lost = find_difference(change.table, concatenate_tables(section.table for section in decode_sections(placed.image)))
    if before != after or address is not None or lost:
        findings.append("the new sections differ from the planned ones")
    if change.undoable and not _restores(written, base):
        findings.append("the original could not be restored")
    return findings


def decode_sections(image: ElfFile) -> Iterator[SframeSection]:
    """Decode the SFrame sections of an object that was laid out in memory, which is `image`."""
    for section in filter(is_sframe, image.sections):
        yield decode(image.contents(section), section.header.sh_addr, image.name)


class ObjectRemoval(NamedTuple):
    """An object and the undo record that restores the original, which is not kept in memory, as an archive has many objects."""

    elf: ElfFile
    record: UndoRecord
    still_has_one: bool  # True if the original has an SFrame section, too

    @property
    def size(self) -> int:
        """Return the size of the original."""
        return self.record.original_size

    @property
    def section_bytes(self) -> int:
        return sum_sframe_bytes(self.elf)

    def write(self, out: BinaryIO) -> None:
        """Write the original to an empty file."""
        write_changed_file(self.elf, Change(()), out, record=self.record)

    def check(self, written: ElfFile) -> list[str]:
        """Return the findings about the written object."""
        return [] if _restores(self.elf, written) else ["it differs from the file that add-section was given"]


def _restores(elf: ElfFile, original: ElfFile) -> bool:
    """Return True if the record in `elf` restores `original`, byte for byte."""
    restored = restore_object(elf)
    return restored is not None and restored[0].data.tobytes() == original.data.tobytes()


def sum_sframe_bytes(elf: ElfFile) -> int:
    return sum(section.header.sh_size for section in elf.sections if is_sframe(section))


def restore_object(elf: ElfFile) -> tuple[ElfFile, UndoRecord] | None:
    """Return the object that add-section changed, and the undo record; None without a valid record."""
    record = undo_record.read_verified(elf.data)
    if record is None or record.gaps or any(offset + len(old) > EHDR_SIZE for offset, old in record.overwritten):
        return None
    data = bytearray(elf.data[: record.original_size])
    for offset, old in record.overwritten:
        data[offset : offset + len(old)] = old
    try:
        original = ElfFile(memoryview(bytes(data)), elf.name)
    except FormatError:
        return None
    return (original, record) if original.header.e_type == ET.REL else None


def plan_object_removal(elf: ElfFile) -> ObjectRemoval | None:
    """Plan to remove an object's SFrame sections; None if it has none. Raises RefusedError if another tool wrote them."""
    if not sum_sframe_bytes(elf):
        return None
    restored = restore_object(elf)
    if restored is None:
        message = "another tool made its SFrame section, or rewrote the object since"
        raise RefusedError(Refusal.FOREIGN_OBJECT, message, file=elf.name)
    return ObjectRemoval(elf, restored[1], any(map(is_sframe, restored[0].sections)))
