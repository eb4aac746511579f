"""The ring buffer that an event shares with the kernel -> whole records."""

from __future__ import annotations

import mmap
import threading
from typing import TYPE_CHECKING, NamedTuple

from cfi.errors import FormatError
from sframegen.profile.events.attributes import EventError
from sframegen.profile.events.event_records import HEADER, LOST, LOST_FIELDS

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGEST = 4096 + 256  # bytes of a record that is no sample: a path and its numbers
DATA_HEAD, DATA_TAIL, DATA_OFFSET, DATA_SIZE = 128, 129, 130, 131  # 64-bit words of the first page


class RawRecord(NamedTuple):
    """A record without its header of 8 bytes."""

    kind: int
    misc: int
    body: bytes


class RingBuffer:
    """`pages`: of data, a power of two. The descriptor stays the caller's. Raises EventError if the memory is not allowed."""

    def __init__(self, descriptor: int, pages: int) -> None:
        try:
            self._map = mmap.mmap(descriptor, (pages + 1) * mmap.PAGESIZE)
        except OSError as error:
            raise EventError(
                f"a ring buffer of {pages} pages is refused ({error.strerror}): raise kernel.perf_event_mlock_kb, or run as root",
                error.errno or 0,
            ) from error
        self._words = memoryview(self._map)[: mmap.PAGESIZE].cast("Q")
        start, size = self._words[DATA_OFFSET], self._words[DATA_SIZE]
        self._data = memoryview(self._map)[start : start + size]
        self._size = size
        self.surely_whole = size - LARGEST  # bytes: of what is taken at once, nothing is missing before there are more of them
        self._fence = threading.Lock()  # taking it is a barrier of the processor
        self.lost = 0  # records that the kernel could not write

    def records(self) -> Iterator[RawRecord]:
        """Yield the records that the kernel has written so far. Raises FormatError if they make no sense."""
        return self._split(self._taken())

    def close(self) -> None:
        self._words.release()
        self._data.release()
        self._map.close()

    def _taken(self) -> bytes:
        """Copy what is new, and give its room back to the kernel."""
        head, tail = self._words[DATA_HEAD], self._words[DATA_TAIL]
        if head == tail:
            return b""
        with self._fence:
            first, last = tail % self._size, head % self._size
            if head - tail > self._size:
                raise FormatError(f"{head - tail} bytes in {self._size}", "ring buffer", first)
            data = bytes(self._data[first:last]) if first < last else bytes(self._data[first:]) + bytes(self._data[:last])
        self._words[DATA_TAIL] = head
        return data

    def _split(self, data: bytes) -> Iterator[RawRecord]:
        at, end = 0, len(data)
        unpack, smallest = HEADER.unpack_from, HEADER.size
        while at + smallest <= end:
            kind, misc, size = unpack(data, at)
            if size < smallest or at + size > end:
                raise FormatError(f"a record of {size} bytes, {end - at} are left", "ring buffer", at)
            body = data[at + smallest : at + size]
            if kind == LOST and len(body) >= LOST_FIELDS.size:
                self.lost += LOST_FIELDS.unpack_from(body)[1]
            yield RawRecord(kind, misc, body)
            at += size
