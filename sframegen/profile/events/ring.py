"""The ring buffer that an event shares with the kernel -> the bytes of whole records."""

from __future__ import annotations

import errno
import mmap
import threading

from cfi.errors import FormatError
from sframegen.profile.events.attributes import EventError

LARGEST = 4096 + 256  # bytes of a record that is no sample: a path and its numbers
REMEDIES = {
    errno.EPERM: ": raise kernel.perf_event_mlock_kb, or run as root",
    errno.EMFILE: ": raise the limit with `ulimit -n`",
}
DATA_HEAD, DATA_TAIL, DATA_OFFSET, DATA_SIZE = 128, 129, 130, 131  # 64-bit words of the first page


class RingBuffer:
    """`pages`: of data, a power of two. The descriptor stays the caller's. Raises EventError if the memory is not allowed."""

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
        self.surely_whole = size - LARGEST  # bytes: nothing is missing before there are more of them
        self.filled = 0  # bytes that it had when room was given back: of what was taken, and of what came meanwhile
        self._fence = threading.Lock()  # taking it is a barrier of the processor

    def close(self) -> None:
        self._words.release()
        self._data.release()
        self._map.close()

    def taken(self) -> bytes:
        """Copy what is new, and give its room back to the kernel. Raises FormatError if that makes no sense."""
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
