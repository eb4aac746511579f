"""Reads the ring buffers of the events on all CPUs, and returns their records in time order. Also lists the online CPUs."""

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

MAX_RECORD = 4096 + 256  # bytes of a record other than a sample: a path and some numbers
REMEDIES = {errno.EPERM: ": raise kernel.perf_event_mlock_kb, or run as root", errno.EMFILE: ": raise the limit with `ulimit -n`"}
DATA_HEAD, DATA_TAIL, DATA_OFFSET, DATA_SIZE = 128, 129, 130, 131  # 64-bit words of the first page


class RingBuffer:
    """An event's ring buffer of `pages` (a power of two). The caller closes the descriptor. Raises EventError if refused."""

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
        self.surely_complete = size - MAX_RECORD  # fill level, in bytes, up to which no record can be missing
        self.filled = 0  # bytes in the buffer when the last `take` gave room back, including those that came during it
        self._fence = threading.Lock()  # acquiring it is a memory barrier

    def close(self) -> None:
        self._words.release()
        self._data.release()
        self._map.close()

    def take(self) -> bytes:
        """Return the new bytes, and give their room back to the kernel. Raises FormatError if the positions contradict the size."""
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
GAP = 0  # a record kind of our own: records are missing from its time on until the time in `misc`


class CpuRings:
    """The events of all CPUs with their ring buffers; their clock is CLOCK_MONOTONIC. Closes descriptors. Threads may share it."""

    def __init__(self) -> None:
        self.by_cpu: dict[int, tuple[int, RingBuffer]] = {}
        self.lost = 0  # records that the kernel could not write
        self._pending: list[TimedRecord] = []
        self._number = 0  # of the next record
        self._lock = threading.Lock()

    @property
    def filenos(self) -> list[int]:
        """Return descriptors that are readable when there are records."""
        return [descriptor for descriptor, _ in self.by_cpu.values()]

    def add(self, cpu: int, descriptor: int, pages: int) -> None:
        """Add the event of a CPU. If its buffer cannot be mapped, close the descriptor and raise EventError."""
        with self._lock:
            try:
                self.by_cpu[cpu] = descriptor, RingBuffer(descriptor, pages)
            except EventError:
                os.close(descriptor)
                raise

    def collect(self) -> None:
        """Move all records out of the buffers. Raises FormatError if one has no time.

        The kernel reports lost records only before the next record that finds room, which may be much later. Therefore a buffer
        that was nearly full counts as a gap at once.
        """
        with self._lock:
            for _, ring in self.by_cpu.values():
                self._collect(ring)

    def collect_unless_full(self) -> None:
        """Call `collect`, unless MAX_PENDING records are pending: then it is better to let the buffers fill."""
        if len(self._pending) < MAX_PENDING:
            self.collect()

    def _collect(self, ring: RingBuffer) -> None:
        """Append a ring buffer's records, and a GAP if records may be missing."""
        data, first_new = ring.take(), len(self._pending)
        self.lost += split_records(data, self._number, self._pending)
        self._number += len(self._pending) - first_new
        if ring.filled > ring.surely_complete:  # the gap begins with the first record that came when the buffer was so full
            ends = accumulate(HEADER.size + len(body) for *_, body in self._pending[first_new:])
            late_records = (number for number, end in enumerate(ends, first_new) if end > ring.surely_complete)
            late = next(late_records, len(self._pending) - 1)
            self._pending.append((self._pending[late][0], self._number, GAP, time.monotonic_ns(), b""))
            self._number += 1

    def take_until(self, now: int) -> list[TimedRecord]:
        """Return the records up to `now`, and forget them. `now` must be a time before `collect`, so that none is missing."""
        with self._lock:
            self._pending.sort()
            count = bisect_right(self._pending, now, key=itemgetter(0))
            records, self._pending = self._pending[:count], self._pending[count:]
        return records

    def close(self, cpu: int) -> None:
        with self._lock:
            descriptor, ring = self.by_cpu.pop(cpu)
            ring.close()
            os.close(descriptor)

    def close_all(self) -> None:
        for cpu in list(self.by_cpu):
            self.close(cpu)


def online_cpus() -> set[int]:
    return parse_cpu_list(ONLINE.read_text())


def parse_cpu_list(text: str) -> set[int]:
    """Return the numbers in a list like `0-3,8`."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus
