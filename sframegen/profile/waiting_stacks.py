"""Copied stacks that wait for the table of a file, kept in a file without a name: there may be thousands of 64 KiB."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections import Counter, deque
from typing import TYPE_CHECKING, NamedTuple

from sframegen.profile.limits import MAX_COPY, MAX_WAITING
from sframegen.profile.stacks.growing import folder_for_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.profile.bpf.kernel_records import Unfinished, Unwalked
    from sframegen.profile.following.processes import ProcessSpans

# Reasons for the loss of dropped stacks.
NO_TABLE_IN_TIME = "the table of a file was not ready in time"
TOO_MANY_WAIT = "too many stacks waited for tables"


class Waiting(NamedTuple):
    """A waiting stack. `spans`: of its process when it was sampled. `number`: of the file whose table it waits for."""

    record: Unfinished
    spans: ProcessSpans
    number: int


class _Kept(NamedTuple):
    """A slot in the file, with a record of `size` bytes, of which `stack` are the bytes of the stack."""

    slot: int
    size: int
    stack: int
    spans: ProcessSpans
    number: int
    unwalked: Unwalked


SLOT = MAX_COPY + (1 << 14)  # bytes in the file: with registers, and the frames that were walked


class WaitingStacks:
    """The waiting stacks, the oldest first. `bytes`: of all stacks.

    Stacks whose tables are there are due. There may be thousands, so callers may stop between two of them.
    """

    def __init__(self, limit: int = MAX_WAITING) -> None:
        self.bytes = 0
        self._limit = limit
        self._stacks: deque[_Kept] = deque()
        self._due: deque[_Kept] = deque()
        self._file = -1
        self._slots = 0  # in the file
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._stacks) + len(self._due)

    def add(self, one: Waiting) -> list[Unwalked]:
        """Add a stack. Return the stacks dropped for it: the oldest beyond the limit, and this one if there is no room."""
        record = pickle.dumps(one.record)
        slot = self._free.pop() if self._free else self._slots
        try:
            self._write(record, slot)
        except OSError:
            self._free += [slot] * (slot < self._slots)
            return [one.record.unwalked]
        self._slots = max(self._slots, slot + 1)
        kept = _Kept(slot, len(record), len(one.record.stack), one.spans, one.number, one.record.unwalked)
        self._stacks.append(kept)
        self.bytes += kept.stack
        dropped = []
        while self.bytes > self._limit:
            oldest = (self._due or self._stacks).popleft()
            self._forget(oldest)
            dropped.append(oldest.unwalked)
        return dropped

    @property
    def has_due(self) -> bool:
        return bool(self._due)

    def wanted(self) -> Counter[int]:
        """Return the number of stacks that wait for each file's table."""
        return Counter(kept.number for kept in self._stacks)

    def make_due(self, numbers: set[int]) -> None:
        """Make the stacks due that wait for the tables of these files."""
        if numbers and any(kept.number in numbers for kept in self._stacks):
            self._due += (kept for kept in self._stacks if kept.number in numbers)
            self._stacks = deque(kept for kept in self._stacks if kept.number not in numbers)

    def take_due(self) -> Iterator[Waiting]:
        """Yield the due stacks, and forget them."""
        while self._due:
            kept = self._due.popleft()
            record = os.pread(self._file, kept.size, kept.slot * SLOT)
            self._forget(kept)
            yield Waiting(pickle.loads(record), kept.spans, kept.number)  # noqa: S301 - our own: nobody else has the file

    def drop(self) -> list[Unwalked]:
        """Forget all stacks, and return them."""
        dropped = [*self._due, *self._stacks]
        self._due.clear()
        self._stacks.clear()
        for kept in dropped:
            self._forget(kept)
        return [kept.unwalked for kept in dropped]

    def files(self) -> set[int]:
        """Return the numbers of all files that the stacks may need."""
        tuples = {id(kept.spans): kept.spans for kept in (*self._stacks, *self._due)}  # thousands share one
        return {span.file for spans in tuples.values() for span in spans}

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self, record: bytes, slot: int) -> None:
        if len(record) > SLOT:
            raise OSError
        if self._file < 0:
            with tempfile.TemporaryFile(dir=folder_for_files()) as file:
                self._file = os.dup(file.fileno())
        if os.pwrite(self._file, record, slot * SLOT) != len(record):
            raise OSError

    def _forget(self, kept: _Kept) -> None:
        self._free.append(kept.slot)
        self.bytes -= kept.stack
        if len(self._free) == self._slots and self._file >= 0:
            os.ftruncate(self._file, 0)
