"""Removes the SFrame sections of an object, byte for byte: from the record that add-section left."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from linker.files.copying import same_bytes
from linker.inject import undo_record
from linker.inject.apply import Change, write_all
from linker.objects.laid_out import is_sframe
from sframegen.base.errors import FormatError, Refusal, RefusedError
from sframegen.elf.file import ElfFile
from sframegen.elf.records import EHDR_SIZE, ET

if TYPE_CHECKING:
    from linker.inject.undo_record import Undo


class ObjectRemoval(NamedTuple):
    """An object, and the one that add-section was given when it made it."""

    elf: ElfFile
    original: ElfFile
    record: Undo  # turns `elf` into `original`

    @property
    def section_bytes(self) -> int:
        return sframe_bytes(self.elf)

    def write(self, out: BinaryIO) -> None:
        """Write the original to an empty file."""
        write_all(self.elf, Change(()), out, record=self.record)

    def check(self, written: ElfFile) -> list[str]:
        """Return the findings about the written object."""
        return [] if same_bytes(written.data, self.original.data) else ["it differs from the file that add-section was given"]


def sframe_bytes(elf: ElfFile) -> int:
    return sum(section.header.sh_size for section in elf.sections if is_sframe(section))


def original_object(elf: ElfFile) -> ObjectRemoval | None:
    """Return what restores the object that add-section was given; None without a valid record."""
    record = undo_record.read(elf.data)
    if record is None or record.gaps or any(offset + len(old) > EHDR_SIZE for offset, old in record.old):
        return None
    data = bytearray(elf.data[: record.original_size])
    for offset, old in record.old:
        data[offset : offset + len(old)] = old
    try:
        original = ElfFile(memoryview(bytes(data)), elf.name)
    except FormatError:
        return None
    return ObjectRemoval(elf, original, record) if original.header.e_type == ET.REL else None


def plan_object_removal(elf: ElfFile) -> ObjectRemoval | None:
    """None if there is nothing to remove. Raises RefusedError for sections that another tool made."""
    if not sframe_bytes(elf):
        return None
    removal = original_object(elf)
    if removal is None:
        message = "another tool made its SFrame section, or rewrote the object since"
        raise RefusedError(Refusal.FOREIGN_OBJECT, message, file=elf.name)
    return removal
