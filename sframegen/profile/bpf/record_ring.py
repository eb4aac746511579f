"""Reads records from the ring buffer that a loaded program shares with us, without a call for each record.

A thread empties the buffer while the profiler is busy; records that wait long are kept in files without names.
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

BUSY, DISCARDED = 1 << 31, 1 << 30  # bits of the length: the record is still being written; it was discarded
HEADER = struct.Struct("=I4x")  # the length, without this; records begin at multiples of its size
LOOKS = 4
DATA_AT = mmap.PAGESIZE  # after the page with the producer's place


class RecordRing:
    """A shared ring buffer. `fd`: of its map; `size`: in bytes. Raises OSError."""

    def __init__(self, fd: int, size: int) -> None:
        self.fileno = fd  # readable when there are records
        self._size = size
        self._ours = mmap.mmap(fd, mmap.PAGESIZE)
        # The kernel maps the data twice, one after the other: no record is in two pieces.
        self._theirs = mmap.mmap(fd, DATA_AT + 2 * size, prot=mmap.PROT_READ, offset=mmap.PAGESIZE)
        self._taken = memoryview(self._ours)[:8].cast("Q")
        self._produced = memoryview(self._theirs)[:8].cast("Q")
        self._fence = threading.Lock()  # a memory barrier: taking it orders our writes for other processors

    def wait(self, milliseconds: int) -> None:
        """Wait that long for the first record."""
        poll = select.poll()
        poll.register(self.fileno, select.POLLIN)
        poll.poll(milliseconds)

    def taken(self) -> list[bytes]:
        """Return all records, the oldest first, and give their room back to the kernel.

        The kernel wakes nobody for a record that comes before room is given back, so such records are taken, too, unless they come
        faster than they are taken.
        """
        records: list[bytes] = []
        for _ in range(LOOKS):
            if not self._take(records):
                break
        return records

    def _take(self, records: list[bytes]) -> bool:
        """Append the records that are there; return True if there were any, even discarded ones."""
        data, last, length_at = self._theirs, self._size - 1, HEADER.unpack_from
        with self._fence:
            at, end = before, _ = self._taken[0], self._produced[0]
        places: list[tuple[int, int]] = []
        with self._fence:
            while at < end:
                start = DATA_AT + (at & last)
                length = length_at(data, start)[0]
                if length & BUSY:
                    break
                size = length & ~DISCARDED
                start += HEADER.size
                if size == length:
                    places.append((start, start + size))
                at += HEADER.size + (size + 7 & ~7)
        with self._fence:
            records += [data[start:stop] for start, stop in places]
        with self._fence:
            self._taken[0] = at
        return at > before

    def close(self) -> None:
        for view in (self._taken, self._produced):
            view.release()
        self._ours.close()
        self._theirs.close()


AT_ONCE = 4 << 20  # bytes of records: to use them takes a tenth of a second, or a few
IN_MEMORY = 8 << 20
TRIM = 20  # looks, after which the heap is trimmed: copies of stacks, of up to 64 KiB each, are freed soon after they were read


class _Batch(NamedTuple):
    """Records of one look, or a part of them, with these sizes. They are in a file if `file` is its descriptor."""

    began: int  # nanoseconds of CLOCK_MONOTONIC; 0: it is not the last part
    sizes: list[int]
    records: list[bytes]
    file: int = -1

    @property
    def size(self) -> int:
        return sum(self.sizes)

    def read(self) -> list[bytes]:
        """Return the records; may be called only once."""
        if self.file < 0:
            return self.records
        data = os.pread(self.file, self.size, 0)
        os.close(self.file)
        return [data[start:end] for start, end in pairwise(accumulate(self.sizes, initial=0))]


class RingReader:
    """Empties a ring buffer with a thread (`start`), and in `records`. Beyond `limit` bytes, the ring buffer may fill."""

    def __init__(self, ring: RecordRing, *, in_memory: int = IN_MEMORY, limit: int = MAX_WAITING) -> None:
        self._ring, self._in_memory, self._limit = ring, in_memory, limit
        self.fileno = ring.fileno
        self.taken_until = 0  # CLOCK_MONOTONIC nanoseconds, up to which `records` has returned everything
        self._batches: deque[_Batch] = deque()
        self._bytes = 0  # of them
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def has_more(self) -> bool:
        """Return True if `records` need not wait."""
        return bool(self._batches)

    def start(self, interval: float, collect: Callable[[], None]) -> None:
        """Start a thread that looks every `interval` seconds, and calls `collect` to empty other buffers. Raises SframegenError."""
        share_heap()  # what the thread has read is freed elsewhere
        thread = threading.Thread(target=self._run, args=(interval, collect), daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise SframegenError(
                f"{error}: memory (`ulimit -v`) or the number of processes (`ulimit -u`) has too low a limit"
            ) from None
        self._thread = thread

    def stop(self) -> None:
        """End the thread, before the process forks others that live on."""
        self._stopping.set()
        if self._thread:
            self._thread.join()

    def records(self, milliseconds: int) -> list[bytes]:
        """Return the oldest records, after a wait of at most `milliseconds` for the first."""
        if milliseconds and not self._batches:
            self._ring.wait(milliseconds)
        self.look()
        found: list[bytes] = []
        size = 0
        while self._batches and size < AT_ONCE:
            with self._lock:
                batch = self._batches.popleft()
                self._bytes -= batch.size
                self.taken_until = max(self.taken_until, batch.began)
            size += batch.size
            found += batch.read()
        return found

    def look(self) -> None:
        """Take all records out of the ring buffer."""
        with self._lock:
            if self._bytes >= self._limit:
                return
            began = monotonic_ns()
            parts = _split_records(self._ring.taken())
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
        looks = 0
        while not self._stopping.wait(interval):
            self.look()
            collect()
            looks += 1
            if looks % TRIM == 0:
                trim_heap()

    def _keep(self, batch: _Batch) -> None:
        if self._bytes + batch.size > self._in_memory:
            try:
                batch = _write_to_file(batch)
            except OSError:  # a full disk: it stays in memory, and the next ones in the ring buffer
                self._limit = min(self._limit, self._in_memory)
        self._batches.append(batch)
        self._bytes += batch.size


def _split_records(records: list[bytes]) -> list[list[bytes]]:
    """Return the records in parts, which are used one after the other: a full buffer has 64 MiB."""
    parts: list[list[bytes]] = []
    size = AT_ONCE
    for record in records:
        if size >= AT_ONCE:
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
