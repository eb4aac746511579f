"""Opens the file that a process has mapped: never another file with the same path, and never a device or a FIFO."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import time
from contextlib import ExitStack
from ctypes import addressof, c_char
from functools import cache
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from sframegen.base.errors import FormatError
from sframegen.program import patience
from sframegen.program.forked import Answer
from sframegen.program.helper import NoAnswerError, helpers
from sframegen.stack.live.open_aside import OpenedAside, handed_over, open_aside
from sframegen.stack.live.process import parse_mappings
from sframegen.stack.mappings import DELETED

if TYPE_CHECKING:
    from collections.abc import Hashable

GET_GENERATION = 0x80087601  # request of ioctl
LONG = Struct("=I4x")
CLOCK_STEP = 10_000_000  # nanoseconds, by which a file's time may be older than the change
CHANGED = "it was changed or replaced after the process mapped it"


class FileKey(NamedTuple):
    """A mapped file, as /proc/PID/maps and PERF_RECORD_MMAP2 identify it."""

    major: int
    minor: int
    inode: int
    generation: int = 0  # PERF_RECORD_MMAP2 only; 0: unknown


class MappedPlace(NamedTuple):
    """A mapping of a file in a process: addresses [start, end), at `time` (CLOCK_MONOTONIC, nanoseconds) or before it."""

    pid: int
    start: int
    end: int
    path: str
    time: int


class MappedFiles:
    """Opens files in helpers, so that a mount that does not answer blocks us only for as long as `Helpers` allows."""

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
        """Return the current status of the file. Raises the same errors as `open`."""
        status: os.stat_result = helpers().call(self._risk(key, place), status_of_mapped, key, place).value
        return status

    def answering(self) -> set[FileKey]:
        """Return, and forget, the files that did not answer, but may be opened now."""
        found = {key for key, risk in self._risks.items() if helpers().answers(risk)}
        for key in found:
            del self._risks[key]
        return found

    def _risk(self, key: FileKey, place: MappedPlace) -> Hashable:
        device = key[:2]
        return (device, place.pid) if device in self._answering else device  # a process may map another file meanwhile


def status_of_mapped(key: FileKey, place: MappedPlace) -> Answer:
    """Return the status of the file. Runs in a helper."""
    descriptor = _opener().open(key, place)
    try:
        return Answer(os.fstat(descriptor))
    finally:
        os.close(descriptor)


def mapped_file(key: FileKey, place: MappedPlace) -> Answer:
    """Open the file, or copy it. Runs in a helper."""
    return handed_over(_opener().open(key, place), place.path)


@cache
def _opener() -> Opener:
    return Opener()


class Opener:
    """Opens files; learns how stat numbers the devices of mappings, which differs on some file systems."""

    def __init__(self) -> None:
        self._devices: dict[tuple[int, int], set[int]] = {}  # of mappings -> st_dev
        self._since = time.monotonic()  # they are learned anew now and then: after an unmount, others have these numbers

    def open(self, key: FileKey, place: MappedPlace) -> int:
        """Return a descriptor of the file. Raises OSError, or FormatError for another file or one that is not regular."""
        if time.monotonic() > self._since + patience.current.devices:
            self._devices.clear()
            self._since = time.monotonic()
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
        """Open the file that is mapped at these addresses now, if it is this one: another file may have taken its place."""
        unopened, status = _identify(f"/proc/{place.pid}/map_files/{place.start:x}-{place.end:x}")
        try:
            descriptor, _ = _readable(unopened, key)
        finally:
            os.close(unopened)
        if status.st_ino == key.inode and self._is_device(key, status):
            return descriptor
        with ExitStack() as refused:
            refused.callback(os.close, descriptor)
            if key_of_mapping(descriptor)[:3] != key[:3]:
                raise FormatError(CHANGED)
            refused.pop_all()
        if status.st_ino == key.inode:
            self._devices.setdefault(key[:2], set()).add(status.st_dev)
        return descriptor

    def _by_path(self, path: str, key: FileKey, place: MappedPlace) -> int:
        """Open a path if it names that inode, and if the file has not changed since it was mapped."""
        unopened, status = _identify(path)
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


def key_of_row(device: str, inode: int) -> FileKey:
    """Return the key of a file in /proc/PID/maps. `device`: two hexadecimal numbers."""
    major, _, minor = device.partition(":")
    return FileKey(int(major, 16), int(minor, 16), inode)


def key_of_mapping(descriptor: int) -> FileKey:
    """Return the key that a file has when it is mapped; stat may have another device number. Raises FormatError."""
    try:
        with mmap.mmap(descriptor, 1, access=mmap.ACCESS_COPY) as mapped:
            begin = b"%08x-" % addressof(c_char.from_buffer(mapped))
            lines = Path("/proc/self/maps").read_bytes().split(b"\n")
    except (OSError, ValueError) as error:
        raise FormatError(f"it cannot be mapped: {error}") from None
    rows = parse_mappings(b"".join(line for line in lines if line.startswith(begin))).rows  # one of hundreds
    if len(rows) != 1:
        raise FormatError("its mapping was not found")
    return key_of_row(rows[0].device, rows[0].inode)


def _identify(path: str) -> tuple[int, os.stat_result]:
    """Return a descriptor that names a file without opening it, and its status. Raises FormatError if it is not regular."""
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
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
