"""Writes the file that a plan describes: the original, copied without passing through this process, then what changes."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import TYPE_CHECKING, BinaryIO

from linker import undo
from linker.replace import Source, unchanged
from linker.undo import Write
from sframegen.elf import RECORDS, SHN_LORESERVE, Ehdr, Phdr, Shdr

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from linker.plan import InjectionPlan
    from sframegen.elf import ElfFile

FICLONE = 0x40049409
CHUNK = 1 << 22  # bytes
# What a file system says that cannot share or copy ranges itself.
UNSUPPORTED = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTTY, errno.EPERM, errno.EBADF}


def write_all(elf: ElfFile, writes: Iterable[Write], out: BinaryIO, record: undo.Undo | None = None) -> None:
    """The file's bytes, or those of what it was made from by its `record`, and then these, to `out`, an empty file.

    Nothing else is done to it: no sync, no mode.
    """
    copy_file(elf, out)
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
    """All that makes the new file, in the order in which it is to be written; last the record.

    Of the original, or, where `cleared` makes that of it, of `given`.
    """
    if len(section) != plan.section_size:
        raise ValueError(f"plan is for {plan.section_size} bytes, section has {len(section)}")
    header = elf.header._replace(e_phoff=plan.table_offset, e_phnum=len(plan.segments))
    if plan.sections:
        count = len(plan.sections)
        header = header._replace(e_shoff=plan.section_table_offset, e_shnum=count if count < SHN_LORESERVE else 0)
    phdr = RECORDS[Phdr, elf.byte_order]
    writes = [
        *cleared,
        Write(0, RECORDS[Ehdr, elf.byte_order].pack(*header)),
        Write(plan.table_offset, b"".join(phdr.pack(*segment) for segment in plan.segments) + bytes(plan.spare_size)),
        *(Write(item.to_offset, elf.data[item.from_offset : item.from_offset + item.size]) for item in plan.moves),
        *(Write(patch.offset, patch.new.to_bytes(8, elf.byte_order)) for patch in plan.patches),
        Write(plan.section_offset, section),
        *(section_writes(plan, elf) if plan.sections else ()),
    ]
    return [*writes, Write(plan.undo_offset, undo.record((given or elf).data, writes))]


def section_writes(plan: InjectionPlan, elf: ElfFile) -> Iterator[Write]:
    """The section header table, and the names before it."""
    names = elf.sections[elf.shstrndx].header
    yield Write(plan.names_offset, elf.slice(names.sh_offset, names.sh_size, "section names"))
    yield Write(plan.names_offset + names.sh_size, plan.new_names.encode())
    shdr = RECORDS[Shdr, elf.byte_order]
    yield Write(plan.section_table_offset, b"".join(shdr.pack(*section.header) for section in plan.sections))


def copy_file(elf: ElfFile, out: BinaryIO) -> None:
    """The original's bytes to `out`, an empty file; holes stay holes. FormatError where the file is no longer what was read."""
    source = elf.descriptor
    if source is None or elf.status is None:
        out.write(elf.data)
        return
    if not unchanged(Source(source, elf.status)):
        raise elf.error("it was changed while it was read")
    if supported(fcntl.ioctl, out.fileno(), FICLONE, source) is None:
        for start, end in extents(source, len(elf.data)):
            copy_range(elf, source, out, start, end)
        out.truncate(len(elf.data))


def extents(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """(start, end) of all that is not a hole."""
    end = 0
    while end < size:
        try:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # nothing but a hole
                raise
            return
        end = os.lseek(descriptor, start, os.SEEK_HOLE)
        yield start, min(end, size)


def copy_range(elf: ElfFile, source: int, out: BinaryIO, start: int, end: int) -> None:
    """Copied by the kernel where the file system can, else written."""
    while start < end:
        copied = supported(os.copy_file_range, source, out.fileno(), end - start, start, start)
        if copied is None:
            break
        if copied == 0:
            raise elf.error("it became shorter while it was copied")
        start += copied
    out.seek(start)
    out.writelines(elf.data[at : min(at + CHUNK, end)] for at in range(start, end, CHUNK))


def supported(call: Callable[..., int], *arguments: int) -> int | None:
    """What the call returns; None where the file system has no such thing."""
    try:
        return call(*arguments)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        return None
