"""Opens files that other users choose in a helper process, which copies a file if its file system may stop answering.

The returned file can be mapped, read and closed without waiting for anybody, whereas even closing a FUSE file may need its server.
The copy has zeros in place of debug information. Each call has a `risk`, a key such as the device: once a call with a risk got no
answer, later calls with it fail at once.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from typing import TYPE_CHECKING, NamedTuple

from sframegen.base.errors import FormatError
from sframegen.elf.file import ElfFile, map_descriptor, open_regular
from sframegen.elf.records import SHF
from sframegen.program.forked import Answer
from sframegen.program.helper import helpers

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

    from sframegen.elf.ranges import Range

# statfs f_type of file systems that the kernel serves itself. Overlays count as such, because containers run from them.
LOCAL_FILE_SYSTEMS = {
    "ext2, ext3, ext4": 0xEF53, "XFS": 0x58465342, "Btrfs": 0x9123683E, "F2FS": 0xF2F52010, "ZFS": 0x2FC12FC1,
    "bcachefs": 0xCA451A4E, "tmpfs, memfd": 0x01021994, "ramfs": 0x858458F6, "hugetlbfs": 0x958458F6, "overlay": 0x794C7630,
    "squashfs": 0x73717368, "EROFS": 0xE0F5E1E2, "ISO 9660": 0x9660, "VFAT": 0x4D44, "exFAT": 0x2011BAB0, "NTFS": 0x7366746E,
    "JFS": 0x3153464A, "UBIFS": 0x24051905,
}  # fmt: skip
STATFS_BYTES = 256  # more than struct statfs has; f_type comes first
F_TYPE_BYTES = 4
MAX_COPY = 1 << 29  # bytes
CHUNK_SIZE = 1 << 20  # bytes copied at a time
SKIPPED_SECTIONS = (".debug_", ".zdebug_")  # names of sections that are not copied: they can be most of a file
NEEDED_SECTION = ".debug_frame"  # the exception, because it has call frame information


class OpenedAside(NamedTuple):
    """An opened file. `status`: of the original. `is_copy`: the descriptor is of a copy of its bytes."""

    descriptor: int
    status: os.stat_result
    is_copy: bool


def open_aside(risk: Hashable, work: Callable[..., Answer], *arguments: object) -> OpenedAside:
    """Call `work` in a helper; return the file that it passes to `hand_over`. Raises the errors of `work`, and NoAnswerError."""
    answer = helpers().call(risk, work, *arguments)
    [descriptor] = answer.descriptors
    return OpenedAside(descriptor, *answer.value)


def open_elf_aside(risk: Hashable, path: str) -> tuple[ElfFile, bool]:
    """Return the ELF file at a path, and whether it is a copy. Raises FormatError and OSError, such as NoAnswerError."""
    opened = open_aside(risk, open_and_hand_over, path)
    try:
        data, _ = map_descriptor(opened.descriptor, path)
    finally:
        os.close(opened.descriptor)
    return ElfFile(data, path, opened.status), opened.is_copy


# The functions below run in the helper.


def open_and_hand_over(path: str) -> Answer:
    return hand_over(open_regular(path, path), path)


def hand_over(descriptor: int, name: str) -> Answer:
    """Return the open file if its file system always answers, else a copy of it. Raises FormatError and OSError."""
    status = os.fstat(descriptor)
    if _is_local(descriptor):
        return Answer((status, False), [descriptor])
    try:
        ranges = list(_find_ranges_to_copy(descriptor, status.st_size, name))
        if sum(end - start for start, end in ranges) > MAX_COPY:
            raise FormatError(f"more than {MAX_COPY >> 20} MiB on a file system that may stop answering", file=name)
        return Answer((status, True), [_copy_to_memory(descriptor, status.st_size, ranges)])
    finally:
        os.close(descriptor)


def _is_local(descriptor: int) -> bool:
    statfs = ctypes.create_string_buffer(STATFS_BYTES)
    if ctypes.CDLL(None).fstatfs(descriptor, statfs) != 0:
        return False
    return int.from_bytes(statfs.raw[:F_TYPE_BYTES], sys.byteorder) in LOCAL_FILE_SYSTEMS.values()


def _copy_to_memory(descriptor: int, size: int, ranges: Iterable[Range]) -> int:
    """Return the descriptor of a copy in memory that has zeros outside of these ranges."""
    copy = os.memfd_create("copy", os.MFD_CLOEXEC)
    try:
        os.truncate(copy, size)
        for start, end in ranges:
            for at in range(start, end, CHUNK_SIZE):
                os.pwrite(copy, os.pread(descriptor, min(CHUNK_SIZE, end - at), at), at)
    except BaseException:
        os.close(copy)
        raise
    return copy


def _find_ranges_to_copy(descriptor: int, size: int, name: str) -> Iterator[Range]:
    """Yield the ranges of the file that are to be copied, ascending."""
    at = 0
    for start, end in sorted(_find_skipped_ranges(descriptor, size, name)):
        if at < start:
            yield at, min(start, size)
        at = max(at, end)
    if at < size:
        yield at, size


def _find_skipped_ranges(descriptor: int, size: int, name: str) -> list[Range]:
    """Return the ranges of sections that are not copied; none if the file is not a readable ELF file."""
    if not size:
        return []
    data = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
    try:
        sections = [section for section in ElfFile(data, name).sections if section.name.startswith(SKIPPED_SECTIONS)]
    except FormatError:
        return []
    headers = [section.header for section in sections if section.name != NEEDED_SECTION and not section.header.sh_flags & SHF.ALLOC]
    return [(header.sh_offset, header.sh_offset + header.sh_size) for header in headers]
