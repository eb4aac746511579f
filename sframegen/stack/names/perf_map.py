"""Names of code that a process makes at run time: `/tmp/perf-PID.map`, which node, Java and others write for perf.

Anybody can write to /tmp: the file is used only if it belongs to the user of the process, or to root.
"""

from __future__ import annotations

import os
import re
import stat
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sframegen.stack.live.proc import fields_of

if TYPE_CHECKING:
    from collections.abc import Iterator

ENTRY = re.compile(rb"^(?:0x)?([0-9a-f]{1,16}) (?:0x)?([0-9a-f]{1,16}) ([^\n]+)$", re.IGNORECASE | re.MULTILINE)
MAX_BYTES = 1 << 26  # of a file
MAX_NAME = 4096  # bytes
BUCKET_BITS = 14  # each bucket has 16 KiB of code
MAX_BUCKETS = 1 << 12  # of one entry: 64 MiB of code
MAX_PLACES = 1 << 20  # in the buckets of all entries together: 200 MB of memory
STARTED_BEFORE = 2.0  # seconds that a file may seem older than its process: clocks are set
ROOT = 0


class Entry(NamedTuple):
    start: int
    size: int
    name: bytes


class PerfMap:
    """The map of one process, which may grow."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._file: tuple[int, int] | None = None
        self._read = 0  # bytes of it
        self._places = 0
        self._buckets: dict[int, list[Entry]] = {}

    def read(self) -> None:
        """Read entries that are new since the last read. A file that is not trusted gives no names."""
        try:
            with _opened(self._pid) as file:
                status = os.fstat(file)
                if not _is_trusted(status, self._pid):
                    self._forget()
                    return
                if (status.st_dev, status.st_ino) != self._file or status.st_size < self._read:
                    self._forget()
                    self._file = status.st_dev, status.st_ino
                self._add(os.pread(file, min(status.st_size, MAX_BYTES) - self._read, self._read))
        except OSError:
            self._forget()

    def find(self, address: int) -> Entry | None:
        """Return the entry at an address: the last one written, because memory is reused."""
        for entry in reversed(self._buckets.get(address >> BUCKET_BITS, ())):
            if entry.start <= address < entry.start + entry.size:
                return entry
        return None

    def _forget(self) -> None:
        self._file, self._read, self._places, self._buckets = None, 0, 0, {}

    def _add(self, data: bytes) -> None:
        """Add whole lines; the last one may be incomplete."""
        data = data[: data.rfind(b"\n") + 1]
        self._read += len(data)
        for match in ENTRY.finditer(data):
            entry = Entry(int(match[1], 16), int(match[2], 16), match[3][:MAX_NAME])
            first, last = entry.start >> BUCKET_BITS, entry.start + entry.size - 1 >> BUCKET_BITS
            if not 0 <= last - first < MAX_BUCKETS:
                continue
            self._places += last - first + 1
            if self._places > MAX_PLACES:
                break
            for number in range(first, last + 1):
                self._buckets.setdefault(number, []).append(entry)


@contextmanager
def _opened(pid: int) -> Iterator[int]:
    """Open the file in the mount and PID namespaces of the process, following no links. Raises OSError."""
    name = f"perf-{fields_of(pid).get('NSpid', str(pid)).split()[-1]}.map"
    opened = [os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY)]
    try:
        opened.append(os.open("tmp", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=opened[0]))
        opened.append(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=opened[1]))
        yield opened[2]
    finally:
        for file in opened:
            os.close(file)


def _is_trusted(status: os.stat_result, pid: int) -> bool:
    """Return True for a regular file that only its owner can write: the user of the process, or root. It must not be older."""
    users = fields_of(pid).get("Uid", "").split()
    return (
        stat.S_ISREG(status.st_mode)
        and not status.st_mode & stat.S_IWOTH
        and status.st_nlink == 1
        and str(status.st_uid) in (str(ROOT), *users[1:2])
        and status.st_mtime + STARTED_BEFORE >= _started(pid)
    )


def _started(pid: int) -> float:
    """Return when the process started, by the clock of files."""
    with suppress(OSError, IndexError, ValueError):
        ticks = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(") ")[2].split()[19])
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
    return float("inf")
