"""Copies parts of files, in the kernel if the file system supports that, or early in a thread; compares byte ranges of files."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from contextlib import suppress
from threading import Event, Lock, Thread

from linker.files.rename_into_place import create_unnamed_file, is_unchanged, opened_directory
from linker.files.rights import Source
from sframegen.base.quick_typing import TYPE_CHECKING, BinaryIO, NamedTuple, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from linker.files.location import Location
    from sframegen.elf.file import ElfFile

T = TypeVar("T")

FICLONE = 0x40049409  # makes a file share all blocks of another one
FS_IOC_RESVSP64 = 0x4030582A  # reserves blocks beyond a file's size; unlike glibc's posix_fallocate, it never writes zeros instead
SPACE_RESV = struct.Struct("hhqqi20x")  # struct space_resv: l_type, l_whence, l_start, l_len, l_sysid, then padding
WRITE_CHUNK = 1 << 22  # bytes
COMPARE_CHUNK = 1 << 18  # bytes
LARGE = 16 << 20  # bytes: smaller files are copied in a few milliseconds
MAX_KERNEL_COPY = 1 << 26  # bytes per copy_file_range call, because a thread cannot be interrupted during a call
# Errors of file systems that cannot share or copy ranges.
UNSUPPORTED = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTTY, errno.EPERM, errno.EBADF}


class FilePart(NamedTuple):
    """A part of a file to copy. `start`: its offset in the file; `to`: its offset in the copy; `size` in bytes."""

    start: int
    to: int
    size: int


def copy_file(elf: ElfFile, out: BinaryIO, parts: Sequence[FilePart] = (), cancelled: Callable[[], bool] = lambda: False) -> None:
    """Copy parts of the file, by default all of it, to `out`, an empty file. Holes stay holes.

    Stops soon after `cancelled` returns True. Raises FormatError if the file has changed since it was opened.
    """
    check_unchanged(elf)
    copy_parts(elf, out, parts or [FilePart(0, 0, len(elf.data))], cancelled)


def copy_parts(elf: ElfFile, out: BinaryIO, parts: Sequence[FilePart], cancelled: Callable[[], bool] = lambda: False) -> None:
    """Copy parts like `copy_file`, without checking that the file is unchanged."""
    source = elf.descriptor
    if source is None or elf.status is None:
        for start, to, size in parts:
            out.seek(to)
            out.write(elf.data[start : start + size])
        return
    is_whole = parts == [FilePart(0, 0, len(elf.data))]
    if is_whole and call_if_supported(fcntl.ioctl, out.fileno(), FICLONE, source) is not None:
        return
    for start, to, size in parts:
        for data_start, end in data_extents(source, start, start + size):
            copy_range(elf, source, out, FilePart(data_start, to + data_start - start, end - data_start), cancelled)
    out.truncate(max(part.to + part.size for part in parts))


def check_unchanged(elf: ElfFile) -> None:
    """Raise FormatError if the file has changed since it was opened."""
    if elf.descriptor is not None and elf.status is not None and not is_unchanged(Source(elf.descriptor, elf.status)):
        raise elf.error("it changed while being read")


def data_extents(descriptor: int, start: int, limit: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of each data extent between offsets `start` and `limit`, without the holes."""
    end = start
    while end < limit:
        try:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # ENXIO: only a hole follows
                raise
            return
        if start >= limit:
            return
        end = os.lseek(descriptor, start, os.SEEK_HOLE)
        yield start, min(end, limit)


def copy_range(elf: ElfFile, source: int, out: BinaryIO, part: FilePart, cancelled: Callable[[], bool]) -> None:
    """Copy one part in the kernel if the file system can, else with plain writes.

    Disk space is reserved in one call, because ext4 needs a quarter of the copy's time to reserve each block separately.
    """
    start, to, size = part
    end = start + size
    call_if_supported(fcntl.ioctl, out.fileno(), FS_IOC_RESVSP64, SPACE_RESV.pack(0, os.SEEK_SET, to, size, 0))
    while start < end and not cancelled():
        copied = call_if_supported(os.copy_file_range, source, out.fileno(), min(end - start, MAX_KERNEL_COPY), start, to)
        if copied is None:
            break
        if copied == 0:
            raise elf.error("it was truncated while being copied")
        start, to = start + copied, to + copied
    out.seek(to)
    for at in range(start, end, WRITE_CHUNK):
        if cancelled():
            return
        out.write(_read_bytes(elf, at, min(WRITE_CHUNK, end - at)))


def call_if_supported(call: Callable[..., T], *arguments: int | bytes) -> T | None:
    """Return the result of a system call, or None if the file system does not support the call."""
    try:
        return call(*arguments)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        return None


def ranges_are_equal(elf: ElfFile, offset: int, other: ElfFile, other_offset: int, size: int) -> bool:
    """Return True if both files have the same `size` bytes at these offsets."""
    chunks = ((at, min(COMPARE_CHUNK, size - at)) for at in range(0, size, COMPARE_CHUNK))
    return all(_read_bytes(elf, offset + at, count) == _read_bytes(other, other_offset + at, count) for at, count in chunks)


def _read_bytes(elf: ElfFile, offset: int, size: int) -> bytes:
    """Return a copy of bytes of the file. They are read, not copied from the mapping, whose pages would count as our memory."""
    if elf.descriptor is None or not 0 <= offset < len(elf.data):
        return elf.data[offset : offset + size].tobytes()
    data = os.pread(elf.descriptor, size, offset)
    if offset + len(data) < min(offset + size, len(elf.data)):
        raise elf.error("it was truncated while being read")
    return data


class CopyAhead:
    """A copy of a file's first `size` bytes that a thread makes in an unnamed file, which `write_atomically` gives a name.

    `file`: the copy; None if the target's file system cannot create unnamed files, or the system cannot start a thread.
    `copy_into`, which needs the copy, raises any error of the thread.
    """

    def __init__(self, elf: ElfFile, target: Location, size: int) -> None:
        self.file: BinaryIO | None = None
        self._elf = elf
        self._size = size
        self._target = target
        self._failure: BaseException | None = MemoryError()  # until the copy is complete: the thread may die before it starts
        self._cancelled = Event()
        self._writing = Lock()  # held while writing, because after an interrupted `join`, a running thread may not seem alive
        self._thread = Thread(target=self._copy)

    def __enter__(self) -> Self:
        return self

    def start(self) -> None:
        """Start the copying thread. Call within the `with` block, whose end stops the thread."""
        with suppress(OSError), opened_directory(self._target) as directory:
            self.file = create_unnamed_file(directory)
        if self.file is None:
            return
        try:
            self._thread.start()
        except (RuntimeError, MemoryError):  # there are too many threads, or no memory for another stack
            self.file.close()
            self.file = None

    def __exit__(self, *_: object) -> None:
        self._cancel()
        if self.file is not None:
            with suppress(OSError):  # flushing the buffer may fail on a full disk
                self.file.close()
        if self._thread.is_alive():
            self._thread.join()

    def _cancel(self) -> None:
        """Stop the copy, and return once the thread no longer writes."""
        self._cancelled.set()
        with self._writing:
            pass

    def _copy(self) -> None:
        with self._writing:
            if self.file is None or self._cancelled.is_set():
                return
            try:
                copy_file(self._elf, self.file, [FilePart(0, 0, self._size)], self._cancelled.is_set)
                self._failure = None
            except BaseException as error:  # noqa: BLE001 - after any exception, the copy is incomplete
                self._failure = error

    def copy_into(self, elf: ElfFile, out: BinaryIO, parts: Sequence[FilePart] = ()) -> None:
        """Copy parts to `out`, like `copy_file`. If `out` is this object's file, wait for the thread and copy what is missing."""
        if out is not self.file:
            copy_file(elf, out, parts)
            return
        try:
            self._thread.join()
        except BaseException:  # raised by a signal handler; the caller closes `out` next
            self._cancel()
            raise
        if self._failure is not None:
            raise self._failure
        check_unchanged(elf)
        first, *others = parts or [FilePart(0, 0, len(elf.data))]
        missing = [FilePart(self._size, self._size, first.size - self._size), *others]  # the first part without the copied bytes
        if first.start or first.to or first.size < self._size:  # the copied bytes are not its beginning
            out.truncate(0)
            missing = [first, *others]
        missing = [part for part in missing if part.size]
        if missing:
            copy_file(elf, out, missing)
