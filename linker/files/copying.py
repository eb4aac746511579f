"""Copies a file as it was read, in the kernel where the file system can; compares bytes of files."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from linker.files.rename_into_place import Source, unchanged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sframegen.elf.file import ElfFile

T = TypeVar("T")

FICLONE = 0x40049409
RESERVE = 0x4030582A  # FS_IOC_RESVSP64: fallocate(FALLOC_FL_KEEP_SIZE), and unlike glibc's posix_fallocate nothing instead of it
SPACE = struct.Struct("hhqqi20x")  # struct space_resv: type, whence, start, length, system
CHUNK = 1 << 22  # bytes
AT_ONCE = 1 << 26  # bytes that the kernel copies in one call, which nothing interrupts in a thread
# Errors of file systems that cannot share or copy ranges.
UNSUPPORTED = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTTY, errno.EPERM, errno.EBADF}


def never() -> bool:
    """Return that the copy is needed."""
    return False


def copy_file(elf: ElfFile, out: BinaryIO, unneeded: Callable[[], bool] = never) -> None:
    """Copy the original's bytes to `out`, an empty file; holes stay holes. Stops soon after `unneeded` returns True.

    Raises FormatError if the file has changed since.
    """
    source = elf.descriptor
    if source is None or elf.status is None:
        out.write(elf.data)
        return
    check_unchanged(elf)
    if supported(fcntl.ioctl, out.fileno(), FICLONE, source) is None:
        for start, end in extents(source, len(elf.data)):
            copy_range(elf, source, out, (start, end), unneeded)
        out.truncate(len(elf.data))


def check_unchanged(elf: ElfFile) -> None:
    """Raises FormatError if the file has changed since it was opened."""
    if elf.descriptor is not None and elf.status is not None and not unchanged(Source(elf.descriptor, elf.status)):
        raise elf.error("it was changed while it was read")


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


def copy_range(elf: ElfFile, source: int, out: BinaryIO, span: tuple[int, int], unneeded: Callable[[], bool]) -> None:
    """Copied by the kernel where the file system can, else written.

    Space on the disk is reserved at once: where ext4 does so for each block, that is a quarter of the copy's time.
    """
    start, end = span
    supported(fcntl.ioctl, out.fileno(), RESERVE, SPACE.pack(0, os.SEEK_SET, start, end - start, 0))
    while start < end and not unneeded():
        copied = supported(os.copy_file_range, source, out.fileno(), min(end - start, AT_ONCE), start, start)
        if copied is None:
            break
        if copied == 0:
            raise elf.error("it became shorter while it was copied")
        start += copied
    out.seek(start)
    for at in range(start, end, CHUNK):
        if unneeded():
            return
        out.write(elf.data[at : min(at + CHUNK, end)])


def supported(call: Callable[..., T], *arguments: int | bytes) -> T | None:
    """Return the call's result; None if the file system does not support it."""
    try:
        return call(*arguments)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        return None


def same_bytes(one: memoryview, other: memoryview) -> bool:
    """Eight at a time: comparing views item by item is what costs."""
    if len(one) != len(other):
        return False
    whole = len(one) & -8
    return one[:whole].cast("Q") == other[:whole].cast("Q") and one[whole:] == other[whole:]
