"""Reads the names of code that a process makes at run time from `/tmp/perf-PID.map`, which node, Java and others write for perf.

Anybody can create files in /tmp, so a map is trusted only if it belongs to the process's user or to root, nobody else can write it
(a group may if it has the owner's id), and it is not older than the process. A helper process reads it, because its file system may
not answer. Entries are kept in order, and found with buckets: each lists the entries that reach into its 16 KiB of addresses.
"""

from __future__ import annotations

import os
import re
import stat
import time
from array import array
from contextlib import suppress
from typing import NamedTuple
from weakref import finalize

from sframegen.program.forked import Answer
from sframegen.program.helper import helpers
from sframegen.stack.live.proc import proc_contents, status_fields_of

# A line: address and size in hexadecimal, and a name that may have spaces.
ENTRY = re.compile(rb"^(?:0x)?([0-9a-f]{1,16}) (?:0x)?([0-9a-f]{1,16}) ([^\n]+)$", re.IGNORECASE | re.MULTILINE)
MAX_BYTES = 1 << 26  # of a map
READ_SIZE = 1 << 20  # bytes that are read at a time
MAX_NAME = 4096  # bytes
BUCKET_BITS = 14  # each bucket stands for 16 KiB of code
MAX_BUCKETS = 1 << 12  # that an entry may span, which is 64 MiB of code
MAX_BUCKET_ENTRIES = 1 << 20  # in all buckets together
CLOCK_TOLERANCE = 2.0  # seconds that a file may seem older than its process, because clocks are adjusted
ROOT = 0
START_TIME_FIELD = 19  # index of the field in /proc/PID/stat, counted after the name


class MapEntry(NamedTuple):
    start: int
    size: int
    name: bytes


class _Process:
    """A process whose map is read: where its map is, and which map can be trusted."""

    def __init__(self, pid: int) -> None:
        """Raises OSError, also if the process has ended."""
        fields = status_fields_of(pid)
        self.ticks = _start_ticks(pid)  # when it started, which tells it from a later process with its id
        self.users = fields.get("Uid", "").split()[1:2]  # the effective user id
        self.name = f"perf-{fields.get('NSpid', str(pid)).split()[-1]}.map"  # with the id that the process itself sees
        self.risk = ("perf map", pid)  # its /tmp may be on a file system that does not answer
        [self.folder] = helpers().call(self.risk, open_maps_folder, pid).descriptors
        finalize(self, os.close, self.folder)

    def is_trusted(self, status: os.stat_result) -> bool:
        """Return True for a regular file that is not older than the process, and that only the process's user or root can write.

        A group may write the file only if its id is that of the owner, which by convention is the owner's private group: where
        users have one, node and Java create files that it may write (umask 002).
        """
        started = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + self.ticks / os.sysconf("SC_CLK_TCK")
        return (
            stat.S_ISREG(status.st_mode)
            and not status.st_mode & stat.S_IWOTH
            and (not status.st_mode & stat.S_IWGRP or status.st_gid == status.st_uid)
            and status.st_nlink == 1
            and str(status.st_uid) in (str(ROOT), *self.users)
            and status.st_mtime + CLOCK_TOLERANCE >= started
        )


class PerfMap:
    """The map of one process. If this object was made while the process ran, it can read the map after the process has ended."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._process: _Process | None = None  # None if the process could not be looked at, or after `end`
        self._ended = False
        self._refresh_process()
        self._entries = _Entries()

    def read(self) -> None:
        """Read the current contents of the file. A file that is not trusted has no entries."""
        self._refresh_process()
        if self._process is not None:
            try:
                self._entries = _read_entries(self._process)
            except OSError:
                self._entries = _Entries()

    def _refresh_process(self) -> None:
        """Look at the process again if it still runs, because its user or root directory may have changed."""
        if self._ended:  # another process may have its id
            return
        with suppress(OSError):
            process = _Process(self._pid)
            if self._process is None or self._process.ticks == process.ticks:
                self._process = process

    def end(self) -> bool:
        """Read the map for the last time, after the process has ended. Return True if the map has entries."""
        self.read()
        self._process, self._ended = None, True
        return self.has_entries

    @property
    def has_entries(self) -> bool:
        return bool(self._entries)

    @property
    def is_ignored(self) -> bool:
        """True if there is a map, but one that is not trusted."""
        return self._entries.is_ignored

    def find(self, address: int) -> MapEntry | None:
        """Return the entry at an address. If there are several, the last one counts, because memory is reused."""
        return self._entries.find(address)


class _Entries:
    """The entries of a map, as columns, because an engine may write hundreds of thousands."""

    def __init__(self, *, is_ignored: bool = False) -> None:
        self.is_ignored = is_ignored
        self._starts, self._sizes = array("Q"), array("Q")
        self._names, self._name_offsets = bytearray(), array("I")  # names, each with a newline after it, and where each begins
        self._buckets: dict[int, array[int]] = {}  # by address >> BUCKET_BITS, the ascending indexes of entries
        self._bucket_entry_count = 0  # in all buckets

    def __bool__(self) -> bool:
        return bool(self._starts)

    def find(self, address: int) -> MapEntry | None:
        for index in reversed(self._buckets.get(address >> BUCKET_BITS, ())):
            start, size = self._starts[index], self._sizes[index]
            if start <= address < start + size:
                name_at = self._name_offsets[index]
                return MapEntry(start, size, bytes(self._names[name_at : self._names.index(b"\n", name_at)]))
        return None

    def add(self, lines: bytes) -> bool:
        """Add the entries in these lines. Return False if there are too many."""
        for match in ENTRY.finditer(lines):
            start, size = int(match[1], 16), int(match[2], 16)
            first_bucket, last_bucket = start >> BUCKET_BITS, start + size - 1 >> BUCKET_BITS
            if not 0 <= last_bucket - first_bucket < MAX_BUCKETS:
                continue
            self._bucket_entry_count += last_bucket - first_bucket + 1
            if self._bucket_entry_count > MAX_BUCKET_ENTRIES:
                return False
            for bucket in range(first_bucket, last_bucket + 1):
                self._buckets.setdefault(bucket, array("I")).append(len(self._starts))
            self._starts.append(start)
            self._sizes.append(size)
            self._name_offsets.append(len(self._names))
            self._names += match[3][:MAX_NAME] + b"\n"
        return True


def _read_entries(process: _Process) -> _Entries:
    """Return the entries of a process's map, read in parts. Raises OSError."""
    entries, at, first_status = _Entries(), 0, None
    for _ in range(MAX_BYTES // READ_SIZE + 1):
        folder, end = [process.folder], min(at + READ_SIZE, MAX_BYTES)
        status, data = helpers().call(process.risk, read_map_part, process.name, at, end, descriptors=folder).value
        first_status = first_status or status
        if not process.is_trusted(status):
            return _Entries(is_ignored=True)
        if not os.path.samestat(status, first_status):  # it was replaced
            return _Entries()
        lines = data[: data.rfind(b"\n") + 1]  # without the last line, which may be incomplete
        if not entries.add(lines) or len(data) < READ_SIZE:
            break
        at += len(lines) or len(data)  # data without a line break is part of a very long line, which is skipped
    return entries


def open_maps_folder(pid: int) -> Answer:
    """Return a descriptor of the process's own /tmp. Runs in a helper."""
    root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY)
    try:
        return Answer(None, [os.open("tmp", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=root)])
    finally:
        os.close(root)


def read_map_part(name: str, at: int, end: int, folder: int) -> Answer:
    """Return status and bytes [at, end) of the map in the folder, without following links. Runs in a helper."""
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=folder)
    try:
        status = os.fstat(file)
        size = min(status.st_size, end) - at if stat.S_ISREG(status.st_mode) else 0
        return Answer((status, os.pread(file, max(size, 0), at)))
    finally:
        os.close(file)


def _start_ticks(pid: int) -> int:
    """Return when a process started, in clock ticks after boot. Raises OSError."""
    text = proc_contents(f"/proc/{pid}/stat").decode(errors="replace")
    try:
        return int(text.rpartition(") ")[2].split()[START_TIME_FIELD])
    except (IndexError, ValueError):
        raise ProcessLookupError from None
