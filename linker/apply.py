"""Writes the file that a plan describes: the original copied without passing through this process, then what changes."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import TYPE_CHECKING, BinaryIO

from linker import undo
from sframegen.elf import RECORDS, Ehdr, Phdr, Shdr

if TYPE_CHECKING:
    from linker.plan import InjectionPlan
    from sframegen.elf import ElfFile

FICLONE = 0x40049409
CHUNK = 1 << 22  # bytes
# What a file system says that cannot share or copy ranges itself.
UNSUPPORTED = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTTY, errno.EPERM, errno.EBADF}


def apply(plan: InjectionPlan, elf: ElfFile, section: bytes | memoryview, out: BinaryIO) -> None:
    """Writes the whole new file to `out`, an empty file. Nothing else is done to it: no sync, no mode."""
    if len(section) != plan.section_size:
        raise ValueError(f"plan is for {plan.section_size} bytes, section has {len(section)}")
    copy_file(elf, out)
    writes = changes(plan, elf)
    for offset, data in writes:
        out.seek(offset)
        out.write(data)
    out.seek(plan.section_offset)
    out.write(section)
    if plan.sections:
        write_sections(plan, elf, out)
    overwritten = [
        undo.Change(offset, bytes(elf.data[offset : offset + len(data)]), bytes(data))
        for offset, data in writes
        if offset < plan.original_size
    ]
    out.seek(plan.undo_offset)
    out.write(undo.pack(plan.original_size, sorted(overwritten)))


def changes(plan: InjectionPlan, elf: ElfFile) -> list[tuple[int, bytes | memoryview]]:
    """(file offset, bytes) of header, table, moved metadata and patched values, in the order in which they are to be written."""
    header = elf.header._replace(e_phoff=plan.table_offset, e_phnum=len(plan.segments))
    if plan.sections:
        header = header._replace(e_shoff=plan.section_table_offset, e_shnum=len(plan.sections))
    phdr = RECORDS[Phdr, elf.byte_order]
    table = b"".join(phdr.pack(*segment) for segment in plan.segments)
    moved = [(item.to_offset, elf.data[item.from_offset : item.from_offset + item.size]) for item in plan.moves]
    patched = [(patch.offset, patch.new.to_bytes(8, elf.byte_order)) for patch in plan.patches]
    return [(0, RECORDS[Ehdr, elf.byte_order].pack(*header)), (plan.table_offset, table), *moved, *patched]


def write_sections(plan: InjectionPlan, elf: ElfFile, out: BinaryIO) -> None:
    names = elf.sections[elf.shstrndx].header
    out.seek(plan.names_offset)
    out.write(elf.data[names.sh_offset : names.sh_offset + names.sh_size])
    out.write(plan.new_names.encode())
    shdr = RECORDS[Shdr, elf.byte_order]
    out.seek(plan.section_table_offset)
    out.write(b"".join(shdr.pack(*section.header) for section in plan.sections))


def copy_file(elf: ElfFile, out: BinaryIO) -> None:
    """The original's bytes to the start of `out`: shared if the file system can, else copied by the kernel, else written."""
    try:
        with open(elf.name, "rb") as source:  # noqa: PTH123 - a name, not yet a Path
            if os.fstat(source.fileno()).st_size == len(elf.data):
                clone(source.fileno(), out.fileno(), len(elf.data))
                return
    except OSError as error:
        if error.errno not in UNSUPPORTED | {errno.ENOENT}:
            raise
    out.seek(0)
    out.writelines(elf.data[start : start + CHUNK] for start in range(0, len(elf.data), CHUNK))


def clone(source: int, target: int, size: int) -> None:
    try:
        fcntl.ioctl(target, FICLONE, source)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        offset = 0
        while offset < size:
            copied = os.copy_file_range(source, target, size - offset, offset, offset)
            if copied == 0:
                raise OSError(errno.EIO, "file became shorter while it was copied") from None
            offset += copied
