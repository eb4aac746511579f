"""Opens the file that a process has mapped: never another file with the same path, and never a device or a FIFO.

/proc/PID/map_files leads to the mapped file itself, but only while the mapping exists, and only with enough rights. Otherwise the
path is opened, as the process sees it or as we do. The file there is refused unless it has the same device, inode and generation,
and was not changed since it was mapped.
"""

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
from sframegen.program import time_limits
from sframegen.program.forked import Answer
from sframegen.program.helper import NoAnswerError, helpers
from sframegen.stack.live.open_aside import OpenedAside, hand_over, open_aside
from sframegen.stack.live.process import parse_mappings
from sframegen.stack.mappings import DELETED

if TYPE_CHECKING:
    from collections.abc import Hashable

FS_IOC_GETVERSION = 0x80087601  # an ioctl request, which returns the inode's generation
GENERATION = Struct("=I4x")
CLOCK_STEP = 10_000_000  # nanoseconds by which a file's time may be older than the change
NO_GENERATION = (errno.ENOTTY, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM, errno.EACCES)  # this file system has none
CHANGED = "it was changed or replaced after the process mapped it"


class FileKey(NamedTuple):
    """The identity of a mapped file in /proc/PID/maps and PERF_RECORD_MMAP2: device, inode and generation."""

    major: int
    minor: int
    inode: int
    generation: int = 0  # from PERF_RECORD_MMAP2 only; 0: unknown


class ProcessMapping(NamedTuple):
    """A mapping of a file in a process: addresses [start, end), at `time` (CLOCK_MONOTONIC, nanoseconds) or before it."""

    pid: int
    start: int
    end: int
    path: str
    time: int


class MappedFiles:
    """Opens files in helper processes, so that a mount that does not answer blocks us only as long as `Helpers` allows."""

    def __init__(self) -> None:
        self._answering: set[tuple[int, int]] = set()  # devices of files that could be opened without copying them
        self._risks: dict[FileKey, Hashable] = {}  # the device, or device and pid, of each file that did not answer

    def open(self, key: FileKey, mapping: ProcessMapping) -> OpenedAside:
        """Return the opened file, or a copy of it. Raises what `Opener.open` raises, and NoAnswerError."""
        risk = self._find_risk(key, mapping)
        try:
            opened = open_aside(risk, open_mapped_file, key, mapping)
        except NoAnswerError:
            self._risks[key] = risk
            raise
        if not opened.is_copy:
            self._answering.add(key[:2])
        return opened

    def stat(self, key: FileKey, mapping: ProcessMapping) -> os.stat_result:
        """Return the current status of the file. Raises the same errors as `open`."""
        status: os.stat_result = helpers().call(self._find_risk(key, mapping), stat_mapped_file, key, mapping).value
        return status

    def take_answering(self) -> set[FileKey]:
        """Return the files that did not answer, but may be opened now, and forget them."""
        answering = {key for key, risk in self._risks.items() if helpers().is_free(risk)}
        for key in answering:
            del self._risks[key]
        return answering

    def _find_risk(self, key: FileKey, mapping: ProcessMapping) -> Hashable:
        """Return what may fail to answer: the device, or, if it has answered before, the device for this process only."""
        device = key[:2]
        return (device, mapping.pid) if device in self._answering else device  # a process may meanwhile map a silent mount's file


def stat_mapped_file(key: FileKey, mapping: ProcessMapping) -> Answer:
    """Answer with the status of a mapped file. Runs in a helper process."""
    descriptor = _opener().open(key, mapping)
    try:
        return Answer(os.fstat(descriptor))
    finally:
        os.close(descriptor)


def open_mapped_file(key: FileKey, mapping: ProcessMapping) -> Answer:
    """Answer with a mapped file's descriptor, or a copy of the file. Runs in a helper process."""
    return hand_over(_opener().open(key, mapping), mapping.path)


@cache
def _opener() -> Opener:
    return Opener()


class Opener:
    """Opens mapped files. On some file systems, stat gives another device number than the mapping; both are remembered."""

    def __init__(self) -> None:
        self._devices: dict[tuple[int, int], set[int]] = {}  # the values of st_dev by the mapping's device
        self._since = time.monotonic()  # when `_devices` was last cleared, because after an unmount, device numbers are reused

    def open(self, key: FileKey, mapping: ProcessMapping) -> int:
        """Return a descriptor of the file. Raises OSError, or FormatError if only another or an irregular file is found."""
        if time.monotonic() > self._since + time_limits.current.device_numbers:
            self._devices.clear()
            self._since = time.monotonic()
        path = mapping.path.removesuffix(DELETED)
        try:
            return self._open_through_mapping(key, mapping)
        except (OSError, FormatError) as failure:
            error: OSError | FormatError = failure
        if mapping.path.startswith("/"):
            for candidate in (f"/proc/{mapping.pid}/root{path}", path):
                try:
                    return self._open_path(candidate, key, mapping)
                except FormatError as failure:
                    error = failure
                except OSError as failure:
                    if not isinstance(error, FormatError):  # which tells more, so it stays
                        error = failure
        raise error

    def _open_through_mapping(self, key: FileKey, mapping: ProcessMapping) -> int:
        """Open the file that is mapped at these addresses now. Raises FormatError if that is another file by now."""
        unopened, status = _open_unread(f"/proc/{mapping.pid}/map_files/{mapping.start:x}-{mapping.end:x}")
        try:
            descriptor, _ = _reopen_to_read(unopened, key)
        finally:
            os.close(unopened)
        if status.st_ino == key.inode and self._is_device(key, status):
            return descriptor
        with ExitStack() as on_error:
            on_error.callback(os.close, descriptor)
            if read_key_as_mapped(descriptor)[:3] != key[:3]:
                raise FormatError(CHANGED)
            on_error.pop_all()
        if status.st_ino == key.inode:
            self._devices.setdefault(key[:2], set()).add(status.st_dev)
        return descriptor

    def _open_path(self, path: str, key: FileKey, mapping: ProcessMapping) -> int:
        """Open a path. Raises FormatError unless it names the mapped inode, unchanged since it was mapped."""
        unopened, status = _open_unread(path)
        try:
            if status.st_ino != key.inode or not self._is_device(key, status):
                raise FormatError("it could not be read while it was mapped, and another file has its path")
            mapped_at = mapping.time + time.time_ns() - time.monotonic_ns()  # by the clock of file times
            descriptor, has_same_generation = _reopen_to_read(unopened, key)
            if status.st_ctime_ns > mapped_at - (0 if has_same_generation else CLOCK_STEP):
                os.close(descriptor)
                raise FormatError(CHANGED)
            return descriptor
        finally:
            os.close(unopened)

    def _is_device(self, key: FileKey, status: os.stat_result) -> bool:
        device = status.st_dev
        return (os.major(device), os.minor(device)) == key[:2] or device in self._devices.get(key[:2], ())


def parse_file_key(device: str, inode: int) -> FileKey:
    """Return the key of a file in a row of /proc/PID/maps. `device`: two hexadecimal numbers, such as "08:01"."""
    major, _, minor = device.partition(":")
    return FileKey(int(major, 16), int(minor, 16), inode)


def read_key_as_mapped(descriptor: int) -> FileKey:
    """Map a file, and return the key that its mapping has; stat may give another device number. Raises FormatError."""
    try:
        with mmap.mmap(descriptor, 1, access=mmap.ACCESS_COPY) as mapped:
            begin = b"%08x-" % addressof(c_char.from_buffer(mapped))
            lines = Path("/proc/self/maps").read_bytes().split(b"\n")
    except (OSError, ValueError) as error:
        raise FormatError(f"it cannot be mapped: {error}") from None
    rows = parse_mappings(b"".join(line for line in lines if line.startswith(begin))).rows  # parses one line of hundreds
    if len(rows) != 1:
        raise FormatError("its mapping was not found")
    return parse_file_key(rows[0].device, rows[0].inode)


def _open_unread(path: str) -> tuple[int, os.stat_result]:
    """Return an O_PATH descriptor, which has no effects on devices and FIFOs, and the status. Raises FormatError for these."""
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise FormatError("not a regular file")
    return descriptor, status


def _reopen_to_read(unopened: int, key: FileKey) -> tuple[int, bool]:
    """Return a descriptor to read from, and whether its generation was compared. Raises FormatError if it differs."""
    descriptor = os.open(f"/proc/self/fd/{unopened}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not key.generation:
        return descriptor, False
    try:
        generation: int = GENERATION.unpack(fcntl.ioctl(descriptor, FS_IOC_GETVERSION, bytes(GENERATION.size)))[0]
    except OSError as error:
        if error.errno in NO_GENERATION:
            return descriptor, False
        os.close(descriptor)
        raise
    if generation != key.generation:
        os.close(descriptor)
        raise FormatError(CHANGED)
    return descriptor, True
