"""Copies files, in the kernel if the file system can, or ahead of time in a thread; compares bytes of files."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from contextlib import suppress
from threading import Event, Lock, Thread

from linker.files.rename_into_place import is_unchanged, nameless_file, opened_directory
from linker.files.rights import Source
from sframegen.base.quick_typing import TYPE_CHECKING, BinaryIO, NamedTuple, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from linker.files.location import Location
    from sframegen.elf.file import ElfFile

T = TypeVar("T")

FICLONE = 0x40049409
RESERVE = 0x4030582A  # FS_IOC_RESVSP64: fallocate(FALLOC_FL_KEEP_SIZE), without the fallback of glibc's posix_fallocate
SPACE = struct.Struct("hhqqi20x")  # struct space_resv: type, whence, start, length, system
CHUNK = 1 << 22  # bytes
COMPARED = 1 << 18  # bytes at a time
LARGE = 16 << 20  # bytes: smaller files are copied in a few milliseconds
AT_ONCE = 1 << 26  # bytes per copy_file_range call, which cannot be interrupted in a thread
# Errors of file systems that cannot share or copy ranges.
UNSUPPORTED = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTTY, errno.EPERM, errno.EBADF}


class FilePart(NamedTuple):
    """A part of a file and its place in a copy. `start`: offset in the file; `to`: offset in the copy; `size` in bytes."""

    start: int
    to: int
    size: int


def copy_file(elf: ElfFile, out: BinaryIO, parts: Sequence[FilePart] = (), unneeded: Callable[[], bool] = lambda: False) -> None:
    """Copy parts of the file, by default all of it, to their places in `out`, an empty file; holes stay holes.

    Stops soon after `unneeded` returns True. Raises FormatError if the file has changed since it was opened.
    """
    check_unchanged(elf)
    copy_parts(elf, out, parts or [FilePart(0, 0, len(elf.data))], unneeded)


def copy_parts(elf: ElfFile, out: BinaryIO, parts: Sequence[FilePart], unneeded: Callable[[], bool] = lambda: False) -> None:
    """Copy parts like `copy_file`, without checking that the file is unchanged."""
    source = elf.descriptor
    if source is None or elf.status is None:
        for start, to, size in parts:
            out.seek(to)
            out.write(elf.data[start : start + size])
        return
    is_whole = parts == [FilePart(0, 0, len(elf.data))]
    if is_whole and supported(fcntl.ioctl, out.fileno(), FICLONE, source) is not None:
        return
    for start, to, size in parts:
        for first, end in data_extents(source, start, start + size):
            copy_range(elf, source, out, FilePart(first, to + first - start, end - first), unneeded)
    out.truncate(max(part.to + part.size for part in parts))


def check_unchanged(elf: ElfFile) -> None:
    """Raise FormatError if the file has changed since it was opened."""
    if elf.descriptor is not None and elf.status is not None and not is_unchanged(Source(elf.descriptor, elf.status)):
        raise elf.error("it changed while being read")


def data_extents(descriptor: int, start: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of each data extent between offsets `start` and `size`, skipping holes."""
    end = start
    while end < size:
        try:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # nothing but a hole
                raise
            return
        if start >= size:
            return
        end = os.lseek(descriptor, start, os.SEEK_HOLE)
        yield start, min(end, size)


def copy_range(elf: ElfFile, source: int, out: BinaryIO, part: FilePart, unneeded: Callable[[], bool]) -> None:
    """Copy one part in the kernel if the file system can, else with plain writes.

    Disk space is reserved in one call: ext4 spends a quarter of the copy's time if it reserves each block separately.
    """
    start, to, size = part
    end = start + size
    supported(fcntl.ioctl, out.fileno(), RESERVE, SPACE.pack(0, os.SEEK_SET, to, size, 0))
    while start < end and not unneeded():
        copied = supported(os.copy_file_range, source, out.fileno(), min(end - start, AT_ONCE), start, to)
        if copied is None:
            break
        if copied == 0:
            raise elf.error("it was truncated while being copied")
        start, to = start + copied, to + copied
    out.seek(to)
    for at in range(start, end, CHUNK):
        if unneeded():
            return
        out.write(_read(elf, at, min(CHUNK, end - at)))


def supported(call: Callable[..., T], *arguments: int | bytes) -> T | None:
    """Return the call's result; None if the file system does not support it."""
    try:
        return call(*arguments)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        return None


def same_range(one: ElfFile, start: int, other: ElfFile, to: int, size: int) -> bool:
    """Return True if `size` bytes from offset `start` of a file on are those from `to` on in the other, and in both files."""
    parts = ((at, min(COMPARED, size - at)) for at in range(0, size, COMPARED))
    return all(_read(one, start + at, count) == _read(other, to + at, count) for at, count in parts)


def _read(elf: ElfFile, offset: int, size: int) -> bytes:
    """Return a copy of bytes of the file, read if it is open: mapped pages that are looked at count as memory of this process."""
    if elf.descriptor is None or not 0 <= offset < len(elf.data):
        return elf.data[offset : offset + size].tobytes()
    data = os.pread(elf.descriptor, size, offset)
    if offset + len(data) < min(offset + size, len(elf.data)):
        raise elf.error("it was truncated while being read")
    return data


class CopyAhead:
    """A copy of a file's first `size` bytes, without a name until `write_atomically` gives it one.

    `file`: the copy; None if the target's file system cannot create unnamed files, or the system cannot start a thread.
    An error in the thread is raised where the copy is needed.
    """

    def __init__(self, elf: ElfFile, target: Location, size: int) -> None:
        self.file: BinaryIO | None = None
        self._elf = elf
        self._size = size
        self._target = target
        self._failure: BaseException | None = MemoryError()  # until the copy is complete: the thread may die before it starts
        self._unneeded = Event()
        self._writing = Lock()  # held while writing: after an interrupted `join`, the thread may look as if it had ended
        self._thread = Thread(target=self._copy)

    def __enter__(self) -> Self:
        return self

    def start(self) -> None:
        """Start to copy in a thread. Call within the `with` block, whose end stops the thread."""
        with suppress(OSError), opened_directory(self._target) as directory:
            self.file = nameless_file(directory)
        if self.file is None:
            return
        try:
            self._thread.start()
        except (RuntimeError, MemoryError):  # too many threads, or no room for another one's stack
            self.file.close()
            self.file = None

    def __exit__(self, *_: object) -> None:
        self._stop()
        if self.file is not None:
            with suppress(OSError):  # flushing the buffer may fail on a full disk
                self.file.close()
        if self._thread.is_alive():
            self._thread.join()

    def _stop(self) -> None:
        """Stop the copy; return once the thread no longer writes."""
        self._unneeded.set()
        with self._writing:
            pass

    def _copy(self) -> None:
        with self._writing:
            if self.file is None or self._unneeded.is_set():
                return
            try:
                copy_file(self._elf, self.file, [FilePart(0, 0, self._size)], self._unneeded.is_set)
                self._failure = None
            except BaseException as error:  # noqa: BLE001 - whatever it is, the copy is not whole
                self._failure = error

    def copy(self, elf: ElfFile, out: BinaryIO, parts: Sequence[FilePart] = ()) -> None:
        """Make `out` a copy, as `copy_file` does. If `out` is this object's file, wait for the thread and copy the rest."""
        parts = parts or [FilePart(0, 0, len(elf.data))]
        first, *rest = parts
        if out is not self.file:
            copy_file(elf, out, parts)
            return
        try:
            self._thread.join()
        except BaseException:  # raised by a signal handler; the caller closes `out` next
            self._stop()
            raise
        if self._failure is not None:
            raise self._failure
        check_unchanged(elf)
        if first.start == first.to == 0 and first.size >= self._size:
            rest = [FilePart(self._size, self._size, first.size - self._size), *rest]
        else:
            out.truncate(0)
            rest = list(parts)
        rest = [part for part in rest if part.size]
        if rest:
            copy_file(elf, out, rest)
