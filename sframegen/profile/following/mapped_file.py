"""Opens the very file that a process has mapped: never another one with the same path, never a device or a FIFO."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from functools import cache
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from cfi.errors import FormatError
from sframegen.program.forked import Answer
from sframegen.program.helper import NoAnswerError, helpers
from sframegen.stack.live.open_aside import OpenedAside, handed_over, open_aside
from sframegen.stack.live.process import parse_mappings
from sframegen.stack.snapshot.mappings import DELETED

if TYPE_CHECKING:
    from collections.abc import Hashable

GET_GENERATION = 0x80087601  # request of ioctl
LONG = Struct("=I4x")
CLOCK_STEP = 10_000_000  # nanoseconds: times of files may be that much older than the change
CHANGED = "it was changed or replaced after the process mapped it"


class FileKey(NamedTuple):
    """What the kernel calls a mapped file: as in /proc/PID/maps and PERF_RECORD_MMAP2."""

    major: int
    minor: int
    inode: int
    generation: int = 0  # PERF_RECORD_MMAP2 only; 0: unknown


class MappedPlace(NamedTuple):
    """Where a process has mapped the file: addresses [start, end), at `time` (CLOCK_MONOTONIC, nanoseconds) or before it."""

    pid: int
    start: int
    end: int
    path: str
    time: int


class MappedFiles:
    """Opens files through helpers: no mount that does not answer can hold us, except for as long as `Helpers` allows."""

    def __init__(self) -> None:
        self._answering: set[tuple[int, int]] = set()  # devices of files that are not copies
        self._risks: dict[FileKey, Hashable] = {}  # of files that did not answer

    def open(self, key: FileKey, place: MappedPlace) -> OpenedAside:
        """Return the file. Raises what `Opener.open` raises, and NoAnswerError."""
        risk = self._risk(key, place)
        try:
            found = open_aside(risk, mapped_file, key, place)
        except NoAnswerError:
            self._risks[key] = risk
            raise
        if not found.is_copy:
            self._answering.add(key[:2])
        return found

    def status(self, key: FileKey, place: MappedPlace) -> os.stat_result:
        """Return the status of the file now. Raises the same."""
        status: os.stat_result = helpers().call(self._risk(key, place), status_of_mapped, key, place).value
        return status

    def answering(self) -> set[FileKey]:
        """Return the files that may be opened now, of those that did not answer. They count no longer as such."""
        found = {key for key, risk in self._risks.items() if helpers().answers(risk)}
        for key in found:
            del self._risks[key]
        return found

    def _risk(self, key: FileKey, place: MappedPlace) -> Hashable:
        device = key[:2]
        return (device, place.pid) if device in self._answering else device  # a process may map another file meanwhile


def status_of_mapped(key: FileKey, place: MappedPlace) -> Answer:
    """In a helper: the status of the file."""
    descriptor = _opener().open(key, place)
    try:
        return Answer(os.fstat(descriptor))
    finally:
        os.close(descriptor)


def mapped_file(key: FileKey, place: MappedPlace) -> Answer:
    """In a helper: open the file, or copy it."""
    return handed_over(_opener().open(key, place), place.path)


@cache
def _opener() -> Opener:
    return Opener()


class Opener:
    """Opens files; learns how stat numbers the devices of mappings, which differs on some file systems."""

    def __init__(self) -> None:
        self._devices: dict[tuple[int, int], set[int]] = {}  # of mappings -> st_dev

    def open(self, key: FileKey, place: MappedPlace) -> int:
        """Return a descriptor. Raises OSError, or FormatError if what can be opened is not that file, or not regular."""
        path = place.path.removesuffix(DELETED)
        error: OSError | FormatError = FormatError("it has no path")
        try:
            return self._through_mapping(key, place)
        except (OSError, FormatError) as refused:
            error = refused
        if place.path.startswith("/"):
            for candidate in (f"/proc/{place.pid}/root{path}", path):
                try:
                    return self._by_path(candidate, key, place)
                except FormatError as refused:
                    error = refused
                except OSError as refused:
                    if not isinstance(error, FormatError):
                        error = refused
        raise error

    def _through_mapping(self, key: FileKey, place: MappedPlace) -> int:
        """Open what is mapped at these addresses now."""
        link = f"/proc/{place.pid}/map_files/{place.start:x}-{place.end:x}"
        unopened, status = _identified(link)
        try:
            if status.st_ino != key.inode:
                self._check_row(key, place)
                _, again = _identified(link, keep=False)
                if (again.st_dev, again.st_ino) != (status.st_dev, status.st_ino):
                    raise FormatError(CHANGED)
            elif not self._is_device(key, status):
                self._check_row(key, place)
                self._devices.setdefault(key[:2], set()).add(status.st_dev)
            return _readable(unopened, key)[0]
        finally:
            os.close(unopened)

    def _by_path(self, path: str, key: FileKey, place: MappedPlace) -> int:
        """Open a path if it names that inode, and nothing has changed it since it was mapped."""
        unopened, status = _identified(path)
        try:
            if status.st_ino != key.inode or not self._is_device(key, status):
                raise FormatError("another file has its path")
            mapped = place.time + time.time_ns() - time.monotonic_ns()
            descriptor, is_generation = _readable(unopened, key)
            if status.st_ctime_ns > mapped - (0 if is_generation else CLOCK_STEP):
                os.close(descriptor)
                raise FormatError(CHANGED)
            return descriptor
        finally:
            os.close(unopened)

    def _is_device(self, key: FileKey, status: os.stat_result) -> bool:
        device = status.st_dev
        return (os.major(device), os.minor(device)) == key[:2] or device in self._devices.get(key[:2], ())

    def _check_row(self, key: FileKey, place: MappedPlace) -> None:
        """Where stat has other numbers than mappings: the process must have that file mapped there now, as mappings have it."""
        row = parse_mappings(Path(f"/proc/{place.pid}/maps").read_bytes()).find(place.start)
        if row is None or key_of_row(row.device, row.inode)[:3] != key[:3] or row.path != place.path:
            raise FormatError(CHANGED)


def key_of_row(device: str, inode: int) -> FileKey:
    """Return the key of a file in /proc/PID/maps. `device`: two hexadecimal numbers."""
    major, _, minor = device.partition(":")
    return FileKey(int(major, 16), int(minor, 16), inode)


def _identified(path: str, *, keep: bool = True) -> tuple[int, os.stat_result]:
    """Return a descriptor that names a file without opening it, and its status. Raises FormatError if it is not regular."""
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if not keep or not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise FormatError("not a regular file")
    return descriptor, status


def _readable(unopened: int, key: FileKey) -> tuple[int, bool]:
    """Return a descriptor to read from, and whether its generation is the right one, which not all file systems have."""
    descriptor = os.open(f"/proc/self/fd/{unopened}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not key.generation:
        return descriptor, False
    try:
        generation: int = LONG.unpack(fcntl.ioctl(descriptor, GET_GENERATION, bytes(LONG.size)))[0]
    except OSError as error:
        if error.errno in (errno.ENOTTY, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM, errno.EACCES):
            return descriptor, False
        os.close(descriptor)
        raise
    if generation != key.generation:
        os.close(descriptor)
        raise FormatError(CHANGED)
    return descriptor, True
