"""Walks copied stacks in this process, at once or as soon as the tables of their files are there.

Waiting stacks are in a file without a name: there may be thousands of 64 KiB.
"""

from __future__ import annotations

import math
import os
import pickle
import tempfile
import time
from collections import Counter, deque
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from sframegen.profile.following.follower import GeneratedCode
from sframegen.profile.limits import MAX_COPY, MAX_WAITING
from sframegen.profile.stacks.growing import find_temporary_folder
from sframegen.profile.walk.copied_stack import CopyWalker
from sframegen.stack.walking.frames import End

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.elf.file import ElfFile
    from sframegen.format.abi import Abi
    from sframegen.profile.bpf.kernel_records import UnfinishedWalk, UnwalkedStack
    from sframegen.profile.bpf.kernel_walker import KernelWalker
    from sframegen.profile.counted_stacks import CountedStacks
    from sframegen.profile.following.files import TracedFile, TracedFiles
    from sframegen.profile.following.processes import Processes, ProcessSpans
    from sframegen.profile.tables.decoded_table import DecodedTable
    from sframegen.profile.tables.table_builder import TableBuilder

WAIT = 0.1  # seconds, at most, for news
WALKING = 0.05  # seconds of one turn for stacks that have waited; meanwhile, no new table is taken
TABLES_AT_THE_END = 30.0  # seconds that stacks wait for tables after sampling has ended
MAX_MADE = 64  # processes whose code in no file is cached


class StackWalks:
    """Requests tables, walks stacks with them, and counts the stacks. `kernel`: gets the tables, too."""

    def __init__(
        self,
        abi: Abi,
        files: TracedFiles,
        processes: Processes,
        builder: TableBuilder,
        counted: CountedStacks,
        kernel: KernelWalker | None = None,
    ) -> None:
        self._files, self._processes, self._builder, self._counted, self._kernel = files, processes, builder, counted, kernel
        self._copies = CopyWalker(abi, self._elf_of)
        self._waiting = WaitingStacks()
        self._building: set[int] = set()  # files whose tables are being made
        self._proving: set[int] = set()  # of those, files whose code is being read for rules
        self._made = lru_cache(MAX_MADE)(lambda pid, _program: GeneratedCode(pid))

    def __len__(self) -> int:
        """Return the number of waiting stacks."""
        return len(self._waiting)

    @property
    def has_due(self) -> bool:
        """Return True if stacks have waited for tables that are there now."""
        return self._waiting.has_due

    def used_files(self) -> set[int]:
        return self._building | self._waiting.files()

    def forget(self, number: int) -> None:
        """Drop all that is known of a file, because its number is given to another one."""
        self._copies.forget(number)

    def close(self) -> None:
        self._waiting.close()

    # -- tables

    def request_new(self) -> None:
        """Request tables of the files that were opened since the last call."""
        for file in self._files.take_new():
            self._request(file)

    def take_tables(self) -> None:
        """Take the tables that are ready, and note the files that get none."""
        without = self._files.take_without_table()
        ready = self._builder.take_ready(self._waiting.wanted())
        for built in ready:
            self._building.discard(built.number)
            self._proving.discard(built.number)
            self._files.by_number[built.number].apply_result(built)
        numbers = [*without, *(built.number for built in ready)]
        tables: dict[int, DecodedTable | None] = {number: self._files.by_number[number].table for number in numbers}
        unproven = {number for number in tables if not self._files.by_number[number].final}
        for number, table in tables.items():
            self._copies.add_table(number, table, final=number not in unproven)
        if self._kernel:
            self._kernel.add_tables(tables, unproven=unproven)
        self._waiting.make_due({*tables})
        if self._waiting.bytes > MAX_WAITING // 2:
            self._stop_waiting_for_proofs()

    def _elf_of(self, number: int) -> ElfFile | None:
        return file.elf if (file := self._files.by_number.get(number)) else None

    def _request(self, file: TracedFile) -> None:
        """Request a file's table, or a proof of rules for code without any; if neither can come, walk without."""
        if file.number in self._building:
            return
        if file.ready and (file.elf is None or file.final):
            self._copies.add_table(file.number, file.table)
            self._waiting.make_due({file.number})
            return
        if file.elf is None:
            return
        self._building.add(file.number)
        if file.ready:
            self._proving.add(file.number)
            self._builder.request_proof(file.number, file.elf)
        else:
            self._builder.request(file.number, file.elf)

    def _stop_waiting_for_proofs(self) -> None:
        """Let stacks that wait for proofs be walked with guesses, because there are too many, or it is too late."""
        numbers = {number for number in self._proving if not self._files.by_number[number].final}
        for number in numbers:
            self._files.by_number[number].final = True
            self._copies.add_table(number, self._files.by_number[number].table)
            if self._kernel:
                self._kernel.end_proof(number)
        self._waiting.make_due(numbers)

    # -- stacks

    def walk(self, record: UnfinishedWalk, spans: ProcessSpans) -> None:
        """Walk a stack and count it, or keep it until the table that it needs is there."""
        end, number = record.end, record.missing
        if end is not End.NO_TABLE or number not in self._building or self._files.by_number[number].ready:
            made = self._made(record.pid, self._processes.program(record.pid))
            columns = self._copies.find_columns(spans)
            end = self._copies.walk(columns, record.where, record.stack_start, record.stack, record.holes, made.read)
            number = self._copies.missing
        if end is End.NO_TABLE:
            for stack in self._waiting.add(Waiting(record, spans, number)):
                self._counted.count_lost(stack, TOO_MANY_WAIT)
            if file := self._files.by_number.get(number):
                self._request(file)
            return
        if end is End.COPY_TOO_SHORT and not record.stack:
            end = End.STACK_GONE
        self._counted.count_walked(record, self._copies.frames(), end)

    def walk_due(self, seconds: float = math.inf) -> None:
        """Walk stacks whose tables are there now, for about `seconds`."""
        end = time.monotonic() + seconds
        for one in self._waiting.take_due():
            self.walk(one.record, one.spans)
            if time.monotonic() > end:
                return

    def finish(self) -> None:
        """Walk the waiting stacks with the tables that are there, and count the rest as lost."""
        self._stop_waiting_for_proofs()
        self.walk_due()
        for stack in self._waiting.drop():
            self._counted.count_lost(stack, NO_TABLE_IN_TIME)


# Reasons for the loss of dropped stacks.
NO_TABLE_IN_TIME = "the table of a file was not ready in time"
TOO_MANY_WAIT = "too many stacks waited for tables"


class Waiting(NamedTuple):
    """A waiting stack. `spans`: of its process when it was sampled. `number`: of the file whose table it waits for."""

    record: UnfinishedWalk
    spans: ProcessSpans
    number: int


class _Kept(NamedTuple):
    """A slot in the file, with a record of `size` bytes, of which `stack` are the bytes of the stack."""

    slot: int
    size: int
    stack: int
    spans: ProcessSpans
    number: int
    unwalked: UnwalkedStack


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

    def add(self, one: Waiting) -> list[UnwalkedStack]:
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

    def drop(self) -> list[UnwalkedStack]:
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
            with tempfile.TemporaryFile(dir=find_temporary_folder()) as file:
                self._file = os.dup(file.fileno())
        if os.pwrite(self._file, record, slot * SLOT) != len(record):
            raise OSError

    def _forget(self, kept: _Kept) -> None:
        self._free.append(kept.slot)
        self.bytes -= kept.stack
        if len(self._free) == self._slots and self._file >= 0:
            os.ftruncate(self._file, 0)
