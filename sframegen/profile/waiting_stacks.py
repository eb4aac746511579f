"""Copied stacks that wait for the table of a file. Their bytes are in a file without a name: there may be thousands of 64 KiB."""

from __future__ import annotations

import os
import tempfile
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from sframegen.profile.limits import MAX_COPY, MAX_WAITING
from sframegen.profile.stacks.growing import folder_for_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.profile.bpf.kernel_records import Unfinished
    from sframegen.profile.following.processes import ProcessSpans

# Why those that are dropped are lost.
NO_TABLE_IN_TIME = "the table of a file was not ready in time"
TOO_MANY_WAIT = "too many stacks waited for tables"


class Waiting(NamedTuple):
    """`spans`: of its process at that time; `number`: of the file whose table it waits for."""

    record: Unfinished
    spans: ProcessSpans
    number: int


class _Place(NamedTuple):
    """A place in the file, for the bytes of a stack."""

    slot: int
    size: int


class WaitingStacks:
    """Those of the kernel program, the oldest first. `bytes`: of all, in the file."""

    def __init__(self, limit: int = MAX_WAITING) -> None:
        self.bytes = 0
        self._limit = limit
        self._stacks: deque[tuple[Waiting, _Place]] = deque()
        self._file = -1
        self._slots = 0  # in the file
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._stacks)

    def add(self, one: Waiting) -> int:
        """Return how many are dropped: the oldest beyond the limit, and this one if there is no room for its bytes."""
        stack = one.record.stack
        slot = self._free.pop() if self._free else self._slots
        try:
            self._write(stack, slot)
        except OSError:
            self._free += [slot] * (slot < self._slots)
            return 1
        self._slots = max(self._slots, slot + 1)
        self._stacks.append((one._replace(record=one.record._replace(stack=b"")), _Place(slot, len(stack))))
        self.bytes += len(stack)
        dropped = 0
        while self.bytes > self._limit:
            self._forget(self._stacks.popleft()[1])
            dropped += 1
        return dropped

    def take(self, numbers: set[int]) -> Iterator[Waiting]:
        """Yield those that wait for these files, and forget them."""
        if not numbers:
            return
        taken = [kept for kept in self._stacks if kept[0].number in numbers]
        if taken:
            self._stacks = deque(kept for kept in self._stacks if kept[0].number not in numbers)
        for one, place in taken:
            stack = os.pread(self._file, place.size, place.slot * MAX_COPY) if place.size else b""
            self._forget(place)
            yield one._replace(record=one.record._replace(stack=stack))

    def files(self) -> set[int]:
        """Return the numbers of all files that they may need."""
        return {span.file for one, _ in self._stacks for span in one.spans}

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self, stack: bytes, slot: int) -> None:
        if self._file < 0:
            with tempfile.TemporaryFile(dir=folder_for_files()) as file:
                self._file = os.dup(file.fileno())
        if os.pwrite(self._file, stack, slot * MAX_COPY) != len(stack):
            raise OSError

    def _forget(self, place: _Place) -> None:
        self._free.append(place.slot)
        self.bytes -= place.size
        if not self.bytes and self._file >= 0:
            os.ftruncate(self._file, 0)
