"""Reads the kernel program's records from the ring buffer in shared memory, without a call for each record.

A thread empties the buffer while the profiler is busy. Records beyond a limit of memory are kept in unnamed files.
"""

from __future__ import annotations

import mmap
import os
import select
import struct
import tempfile
import threading
from collections import deque
from itertools import accumulate, pairwise
from time import monotonic_ns
from typing import TYPE_CHECKING, NamedTuple

from sframegen.base.errors import SframegenError
from sframegen.profile.limits import MAX_WAITING
from sframegen.profile.stacks.growing import find_temporary_folder
from sframegen.program.own_memory import share_heap, trim_heap

if TYPE_CHECKING:
    from collections.abc import Callable

BUSY, DISCARDED = 1 << 31, 1 << 30  # flags in the length: the record is still being written; it was discarded
HEADER = struct.Struct("=I4x")  # the record's length, without the header; records begin at multiples of the header's size
MAX_TURNS = 4  # of one call of `take`, because new records may come for ever
DATA_AT = mmap.PAGESIZE  # after the page with the producer's position


class RecordRing:
    """A ring buffer in shared memory. `fd`: its map's descriptor; `size`: in bytes. Raises OSError."""

    def __init__(self, fd: int, size: int) -> None:
        self.fileno = fd  # readable when there are records
        self._size = size
        self._consumer_page = mmap.mmap(fd, mmap.PAGESIZE)
        # The kernel maps the data twice, one copy after the other, so that each record is contiguous.
        self._producer_pages = mmap.mmap(fd, DATA_AT + 2 * size, prot=mmap.PROT_READ, offset=mmap.PAGESIZE)
        self._consumed = memoryview(self._consumer_page)[:8].cast("Q")
        self._produced = memoryview(self._producer_pages)[:8].cast("Q")
        self._fence = threading.Lock()  # acquiring it is a memory barrier, which orders our reads and writes

    def wait(self, milliseconds: int) -> None:
        """Wait at most that long for a record."""
        poll = select.poll()
        poll.register(self.fileno, select.POLLIN)
        poll.poll(milliseconds)

    def take(self) -> list[bytes]:
        """Return all records, the oldest first, and give their room back to the kernel.

        The kernel wakes nobody for a record that comes before room is given back. Therefore look again, at most MAX_TURNS times.
        """
        records: list[bytes] = []
        for _ in range(MAX_TURNS):
            if not self._take(records):
                break
        return records

    def _take(self, records: list[bytes]) -> bool:
        """Append the records that are complete; return True if there were any, even discarded ones."""
        data, mask, read_length = self._producer_pages, self._size - 1, HEADER.unpack_from
        with self._fence:
            at = consumed = self._consumed[0]
            end = self._produced[0]
        ranges: list[tuple[int, int]] = []  # of the complete records, in `data`
        with self._fence:
            while at < end:
                start = DATA_AT + (at & mask)
                length = read_length(data, start)[0]
                if length & BUSY:
                    break
                size = length & ~DISCARDED
                start += HEADER.size
                if size == length:
                    ranges.append((start, start + size))
                at += HEADER.size + (size + 7 & ~7)  # rounded up to a multiple of 8
        with self._fence:
            records += [data[start:stop] for start, stop in ranges]
        with self._fence:
            self._consumed[0] = at
        return at > consumed

    def close(self) -> None:
        for view in (self._consumed, self._produced):
            view.release()
        self._consumer_page.close()
        self._producer_pages.close()


BATCH_SIZE = 4 << 20  # bytes of records, which take a few tenths of a second to process
IN_MEMORY = 8 << 20  # bytes of records that are kept in memory
TRIM_INTERVAL = 20  # how often the thread empties the ring before it trims the heap, which copies of stacks fill


class _Batch(NamedTuple):
    """Some of the records that were taken at once, with their sizes. They are in a file if `file` is its descriptor."""

    began: int  # CLOCK_MONOTONIC nanoseconds when they were taken; 0 for all batches but the last of those taken at once
    sizes: list[int]
    records: list[bytes]
    file: int = -1

    @property
    def size(self) -> int:
        return sum(self.sizes)

    def read(self) -> list[bytes]:
        """Return the records, and close the file. May be called only once."""
        if self.file < 0:
            return self.records
        data = os.pread(self.file, self.size, 0)
        os.close(self.file)
        return [data[start:end] for start, end in pairwise(accumulate(self.sizes, initial=0))]


class RingReader:
    """Empties a ring buffer, in `take_records` and in a thread. While more than `limit` bytes wait, the ring buffer may fill."""

    def __init__(self, ring: RecordRing, *, in_memory: int = IN_MEMORY, limit: int = MAX_WAITING) -> None:
        self._ring, self._in_memory, self._limit = ring, in_memory, limit
        self.fileno = ring.fileno
        self.taken_until = 0  # CLOCK_MONOTONIC nanoseconds up to which `take_records` has returned all records
        self._batches: deque[_Batch] = deque()
        self._bytes = 0  # size of all batches
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def has_more(self) -> bool:
        """Return True if `take_records` need not wait."""
        return bool(self._batches)

    def start(self, interval: float, collect: Callable[[], None]) -> None:
        """Start a thread that empties the ring every `interval` seconds, and then calls `collect`. Raises SframegenError."""
        share_heap()  # because another thread frees the records that this thread allocates
        thread = threading.Thread(target=self._run, args=(interval, collect), daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise SframegenError(
                f"{error}: memory (`ulimit -v`) or the number of processes (`ulimit -u`) has too low a limit"
            ) from None
        self._thread = thread

    def stop(self) -> None:
        """End the thread. Call it before forking processes that live on."""
        self._stopping.set()
        if self._thread:
            self._thread.join()

    def take_records(self, milliseconds: int) -> list[bytes]:
        """Return the oldest records, after a wait of at most `milliseconds` for the first."""
        if milliseconds and not self._batches:
            self._ring.wait(milliseconds)
        self.empty_ring()
        records: list[bytes] = []
        size = 0
        while self._batches and size < BATCH_SIZE:
            with self._lock:
                batch = self._batches.popleft()
                self._bytes -= batch.size
                self.taken_until = max(self.taken_until, batch.began)
            size += batch.size
            records += batch.read()
        return records

    def empty_ring(self) -> None:
        """Take all records out of the ring buffer, unless too many wait already."""
        with self._lock:
            if self._bytes >= self._limit:
                return
            began = monotonic_ns()
            parts = _split_records(self._ring.take())
            for number, records in enumerate(parts, 1):
                self._keep(_Batch(began if number == len(parts) else 0, [*map(len, records)], records))
            if not self._batches:
                self.taken_until = began

    def close(self) -> None:
        self.stop()
        while self._batches:
            self._batches.popleft().read()
        self._ring.close()

    def _run(self, interval: float, collect: Callable[[], None]) -> None:
        turns = 0
        while not self._stopping.wait(interval):
            self.empty_ring()
            collect()
            turns += 1
            if turns % TRIM_INTERVAL == 0:
                trim_heap()

    def _keep(self, batch: _Batch) -> None:
        """Append a batch, in memory or in a file."""
        if self._bytes + batch.size > self._in_memory:
            try:
                batch = _write_to_file(batch)
            except OSError:  # the disk is full: this batch stays in memory, and later records stay in the ring buffer
                self._limit = min(self._limit, self._in_memory)
        self._batches.append(batch)
        self._bytes += batch.size


def _split_records(records: list[bytes]) -> list[list[bytes]]:
    """Return the records in parts of about BATCH_SIZE, because a full ring buffer has 64 MiB."""
    parts: list[list[bytes]] = []
    size = BATCH_SIZE
    for record in records:
        if size >= BATCH_SIZE:
            parts.append([])
            size = 0
        parts[-1].append(record)
        size += len(record)
    return parts


def _write_to_file(batch: _Batch) -> _Batch:
    """Return the batch with its records in a file. Raises OSError."""
    with tempfile.TemporaryFile(dir=find_temporary_folder(), buffering=0) as file:
        if file.write(b"".join(batch.records)) != batch.size:
            raise OSError
        return batch._replace(records=[], file=os.dup(file.fileno()))
