"""Reads the ring buffers of events on all CPUs: their records in the order of time. Also lists the CPUs that are online."""

from __future__ import annotations

import errno
import mmap
import os
import threading
import time
from bisect import bisect_right
from itertools import accumulate
from operator import itemgetter
from pathlib import Path

from sframegen.base.errors import FormatError
from sframegen.profile.events.attributes import EventError
from sframegen.profile.events.event_records import HEADER
from sframegen.profile.events.timed_records import TimedRecord, split_records

LARGEST = 4096 + 256  # bytes of a record that is not a sample: a path and some numbers
REMEDIES = {
    errno.EPERM: ": raise kernel.perf_event_mlock_kb, or run as root",
    errno.EMFILE: ": raise the limit with `ulimit -n`",
}
DATA_HEAD, DATA_TAIL, DATA_OFFSET, DATA_SIZE = 128, 129, 130, 131  # 64-bit words of the first page


class RingBuffer:
    """An event's ring buffer of `pages` (a power of two). The caller closes the descriptor. Raises EventError if refused memory."""

    def __init__(self, descriptor: int, pages: int) -> None:
        try:
            self._map = mmap.mmap(descriptor, (pages + 1) * mmap.PAGESIZE)
        except OSError as error:
            remedy = REMEDIES.get(error.errno or 0, "")
            raise EventError(f"a ring buffer of {pages} pages is refused ({error.strerror}){remedy}", error.errno or 0) from error
        self._words = memoryview(self._map)[: mmap.PAGESIZE].cast("Q")
        start, size = self._words[DATA_OFFSET], self._words[DATA_SIZE]
        self._data = memoryview(self._map)[start : start + size]
        self._size = size
        self.surely_whole = size - LARGEST  # bytes: up to this fill level, no record can be missing
        self.filled = 0  # bytes in the buffer when room was given back: those taken, and those that came meanwhile
        self._fence = threading.Lock()  # taking it is a barrier of the processor

    def close(self) -> None:
        self._words.release()
        self._data.release()
        self._map.close()

    def taken(self) -> bytes:
        """Return a copy of new bytes, and give their room back to the kernel. Raises FormatError if the positions make no sense."""
        head, tail = self._words[DATA_HEAD], self._words[DATA_TAIL]
        if head == tail:
            self.filled = 0
            return b""
        with self._fence:
            first, last = tail % self._size, head % self._size
            if head - tail > self._size:
                raise FormatError(f"{head - tail} bytes in {self._size}", "ring buffer", first)
            data = bytes(self._data[first:last]) if first < last else bytes(self._data[first:]) + bytes(self._data[:last])
        self._words[DATA_TAIL] = head
        with self._fence:
            self.filled = self._words[DATA_HEAD] - tail
        return data


ONLINE = Path("/sys/devices/system/cpu/online")
MAX_PENDING = 1 << 20  # records
GAP = 0  # a kind that stands for missing records, from its time on to the time in `misc`


class CpuRings:
    """The events of all CPUs and their ring buffers. Descriptors are closed here.

    Samples and the suffixes of other records have TID, TIME and CPU; the clock is CLOCK_MONOTONIC. Several threads may use it.
    """

    def __init__(self) -> None:
        self.by_cpu: dict[int, tuple[int, RingBuffer]] = {}
        self.lost = 0  # records that the kernel could not write
        self._pending: list[TimedRecord] = []
        self._number = 0
        self._lock = threading.Lock()

    @property
    def filenos(self) -> list[int]:
        """Return descriptors that are readable when there are records."""
        return [descriptor for descriptor, _ in self.by_cpu.values()]

    def add(self, cpu: int, descriptor: int, pages: int) -> None:
        """Add the event of a CPU. Closes the descriptor, and raises EventError, if the buffer's memory is not allowed."""
        with self._lock:
            try:
                self.by_cpu[cpu] = descriptor, RingBuffer(descriptor, pages)
            except EventError:
                os.close(descriptor)
                raise

    def collect(self) -> None:
        """Move all records out of the buffers. Raises FormatError if one has no time.

        The kernel says how many it lost with the next record that has room, which may be much later. A full buffer shows at once.
        """
        with self._lock:
            for _, ring in self.by_cpu.values():
                self._collect(ring)

    def collect_some(self) -> None:
        """Call `collect` unless very many records wait to be taken out: the buffers may fill then."""
        if len(self._pending) < MAX_PENDING:
            self.collect()

    def _collect(self, ring: RingBuffer) -> None:
        data, before = ring.taken(), len(self._pending)
        self.lost += split_records(data, self._number, self._pending)
        self._number += len(self._pending) - before
        if ring.filled > ring.surely_whole:
            ends = accumulate(HEADER.size + len(body) for *_, body in self._pending[before:])
            last = len(self._pending) - 1
            first = next((number for number, end in enumerate(ends, before) if end > ring.surely_whole), last)
            self._pending.append((self._pending[first][0], self._number, GAP, time.monotonic_ns(), b""))
            self._number += 1

    def until(self, now: int) -> list[TimedRecord]:
        """Return, and forget, the records up to `now`, a time before `collect`. After it, a CPU may have earlier records unseen."""
        with self._lock:
            self._pending.sort()
            count = bisect_right(self._pending, now, key=itemgetter(0))
            taken, self._pending = self._pending[:count], self._pending[count:]
        return taken

    def close(self, cpu: int) -> None:
        with self._lock:
            descriptor, ring = self.by_cpu.pop(cpu)
            ring.close()
            os.close(descriptor)

    def close_all(self) -> None:
        for cpu in list(self.by_cpu):
            self.close(cpu)


def online_cpus() -> set[int]:
    return cpus_in(ONLINE.read_text())


def cpus_in(text: str) -> set[int]:
    """Return the numbers in a list like `0-3,8`."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus
