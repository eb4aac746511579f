"""The ring buffer of a loaded program, as the kernel shares it -> its records. Without a call for each of them."""

from __future__ import annotations

import mmap
import select
import struct
import threading

BUSY, DISCARDED = 1 << 31, 1 << 30  # bits of the length: it is still being written; it is not for us
HEADER = struct.Struct("=I4x")  # the length, without this; records begin at multiples of its size
LOOKS = 4
DATA_AT = mmap.PAGESIZE  # after the page with the producer's place


class RecordRing:
    """`fd`: of the map; `size`: its bytes. Raises OSError."""

    def __init__(self, fd: int, size: int) -> None:
        self.fileno = fd  # readable when there are records
        self._size = size
        self._ours = mmap.mmap(fd, mmap.PAGESIZE)
        # The kernel maps the data twice, one after the other: no record is in two pieces.
        self._theirs = mmap.mmap(fd, DATA_AT + 2 * size, prot=mmap.PROT_READ, offset=mmap.PAGESIZE)
        self._taken = memoryview(self._ours)[:8].cast("Q")
        self._written = memoryview(self._theirs)[:8].cast("Q")
        self._fence = threading.Lock()  # what is done while it is held is done before it is taken again, for other processors, too

    def wait(self, milliseconds: int) -> None:
        """Wait that long for the first record."""
        poll = select.poll()
        poll.register(self.fileno, select.POLLIN)
        poll.poll(milliseconds)

    def taken(self) -> list[bytes]:
        """Return all records, the oldest first, and give their room back to the kernel.

        It wakes nobody for a record that comes before the room of earlier ones is given back: those are taken at once, too, unless
        they come faster than they are taken.
        """
        records: list[bytes] = []
        for _ in range(LOOKS):
            if not self._take(records):
                break
        return records

    def _take(self, records: list[bytes]) -> bool:
        """Add those that are there, and return whether there were any, for us or not."""
        data, last, length_at = self._theirs, self._size - 1, HEADER.unpack_from
        with self._fence:
            at, end = before, _ = self._taken[0], self._written[0]
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
        for view in (self._taken, self._written):
            view.release()
        self._ours.close()
        self._theirs.close()
