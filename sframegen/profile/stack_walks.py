"""Walks copied stacks in this process, at once or as soon as the tables of their files are ready.

A walk that meets a file without a table requests it, and the stack waits; when the table is ready, the stack is due, and its walk
begins again. Code without a rule requests a proof in the same way. Waiting stacks are stored in an unnamed file, because there may
be thousands, of 64 KiB each.
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

WAIT = 0.1  # seconds that a session waits at most for records or tables
WALK_SECONDS = 0.05  # seconds after which walking stacks that have waited is interrupted, to take new tables
MAX_WAIT_AT_END = 30.0  # seconds that stacks wait for tables after sampling has ended
MAX_GENERATED = 64  # processes whose code without a file is cached


class StackWalks:
    """Requests tables, walks stacks with them, and counts the stacks. `kernel`: also gets the tables."""

    def __init__(
        self, abi: Abi, files: TracedFiles, processes: Processes, builder: TableBuilder, counted: CountedStacks,
        kernel: KernelWalker | None = None,
    ) -> None:  # fmt: skip
        self._files, self._processes, self._builder, self._counted, self._kernel = files, processes, builder, counted, kernel
        self._copies = CopyWalker(abi, self._elf_of)
        self._waiting = WaitingStacks()
        self._building: set[int] = set()  # files whose tables are being made
        self._proving: set[int] = set()  # those of them whose rules are being proven from their code
        self._generated_code = lru_cache(MAX_GENERATED)(lambda pid, _program: GeneratedCode(pid))

    def __len__(self) -> int:
        """Return the number of waiting stacks."""
        return len(self._waiting)

    @property
    def has_due(self) -> bool:
        """Return True if the tables for which some stacks have waited are ready."""
        return self._waiting.has_due

    def used_files(self) -> set[int]:
        return self._building | self._waiting.used_files()

    def forget(self, number: int) -> None:
        """Forget a file's table and code, because its number is about to be given to another file."""
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
        without_table = self._files.take_without_table()
        ready = self._builder.take_ready(self._waiting.count_by_file())
        for built in ready:
            self._building.discard(built.number)
            self._proving.discard(built.number)
            self._files.by_number[built.number].apply_result(built)
        numbers = [*without_table, *(built.number for built in ready)]
        tables: dict[int, DecodedTable | None] = {number: self._files.by_number[number].table for number in numbers}
        unproven = {number for number in tables if not self._files.by_number[number].final}
        for number, table in tables.items():
            self._copies.add_table(number, table, final=number not in unproven)
        if self._kernel:
            self._kernel.add_tables(tables, unproven=unproven)
        self._waiting.make_due(set(tables))
        if self._waiting.bytes > MAX_WAITING // 2:
            self._end_wait_for_proofs()

    def _elf_of(self, number: int) -> ElfFile | None:
        return file.elf if (file := self._files.by_number.get(number)) else None

    def _request(self, file: TracedFile) -> None:
        """Request a file's table, or, if that is ready, a proof. If neither is possible, let stacks be walked without."""
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

    def _end_wait_for_proofs(self) -> None:
        """Let stacks that wait for proofs be walked without proven rules, because there are too many, or it is too late."""
        numbers = {number for number in self._proving if not self._files.by_number[number].final}
        for number in numbers:
            self._files.by_number[number].final = True
            self._copies.add_table(number, self._files.by_number[number].table)
            if self._kernel:
                self._kernel.end_proof(number)
        self._waiting.make_due(numbers)

    # -- stacks

    def walk(self, record: UnfinishedWalk, spans: ProcessSpans) -> None:
        """Walk a stack and count it, or keep it until the table that it needs is ready."""
        end, missing = record.end, record.missing
        # A walk in the kernel that ended for want of a table which is still being made need not be tried here.
        if end is not End.NO_TABLE or missing not in self._building or self._files.by_number[missing].ready:
            generated = self._generated_code(record.pid, self._processes.program(record.pid))
            columns = self._copies.find_columns(spans)
            end = self._copies.walk(columns, record.start, record.stack_start, record.stack, record.holes, generated.read)
            missing = self._copies.missing
        if end is End.NO_TABLE:
            for dropped in self._waiting.add(WaitingStack(record, spans, missing)):
                self._counted.count_lost(dropped, TOO_MANY_WAIT)
            if file := self._files.by_number.get(missing):
                self._request(file)
            return
        if end is End.COPY_TOO_SHORT and not record.stack:
            end = End.STACK_GONE
        self._counted.count_walked(record, self._copies.frames(), end)

    def walk_due(self, seconds: float = math.inf) -> None:
        """Walk the stacks whose tables are ready, for about `seconds`."""
        end = time.monotonic() + seconds
        for stack in self._waiting.take_due():
            self.walk(stack.record, stack.spans)
            if time.monotonic() > end:
                return

    def finish(self) -> None:
        """Walk the waiting stacks with the tables that are ready, and count the rest as lost."""
        self._end_wait_for_proofs()
        self.walk_due()
        for stack in self._waiting.drop():
            self._counted.count_lost(stack, NO_TABLE_IN_TIME)


# Reasons why dropped stacks are lost
NO_TABLE_IN_TIME = "the table of a file was not ready in time"
TOO_MANY_WAIT = "too many stacks waited for tables"


class WaitingStack(NamedTuple):
    """A waiting stack. `spans`: its process's mappings when it was sampled. `number`: the file for whose table it waits."""

    record: UnfinishedWalk
    spans: ProcessSpans
    number: int


class _StoredStack(NamedTuple):
    """A waiting stack whose pickled record, of `size` bytes, is in a slot of the file."""

    slot: int
    size: int
    stack_size: int
    spans: ProcessSpans
    number: int
    unwalked: UnwalkedStack


SLOT = MAX_COPY + (1 << 14)  # bytes of a slot, with room for registers and the frames walked so far


class WaitingStacks:
    """The waiting stacks, the oldest first. `bytes`: the size of all copied stacks.

    A stack is due once its table is ready. There may be thousands of them, so callers may stop between two.
    """

    def __init__(self, limit: int = MAX_WAITING) -> None:
        self.bytes = 0
        self._limit = limit
        self._stacks: deque[_StoredStack] = deque()
        self._due: deque[_StoredStack] = deque()
        self._file = -1
        self._slots = 0  # number of slots in the file
        self._free: list[int] = []  # slots

    def __len__(self) -> int:
        return len(self._stacks) + len(self._due)

    def add(self, stack: WaitingStack) -> list[UnwalkedStack]:
        """Add a stack. Return the stacks that are dropped: the oldest beyond the limit, or this one if it cannot be written."""
        record = pickle.dumps(stack.record)
        slot = self._free.pop() if self._free else self._slots
        try:
            self._write(record, slot)
        except OSError:
            if slot < self._slots:  # it was a free one
                self._free.append(slot)
            return [stack.record.unwalked]
        self._slots = max(self._slots, slot + 1)
        stored = _StoredStack(slot, len(record), len(stack.record.stack), stack.spans, stack.number, stack.record.unwalked)
        self._stacks.append(stored)
        self.bytes += stored.stack_size
        dropped = []
        while self.bytes > self._limit:
            oldest = (self._due or self._stacks).popleft()
            self._forget(oldest)
            dropped.append(oldest.unwalked)
        return dropped

    @property
    def has_due(self) -> bool:
        return bool(self._due)

    def count_by_file(self) -> Counter[int]:
        """Return the number of stacks that wait for each file's table."""
        return Counter(stored.number for stored in self._stacks)

    def make_due(self, numbers: set[int]) -> None:
        """Mark the stacks that wait for the tables of these files as due."""
        if numbers and any(stored.number in numbers for stored in self._stacks):
            self._due += (stored for stored in self._stacks if stored.number in numbers)
            self._stacks = deque(stored for stored in self._stacks if stored.number not in numbers)

    def take_due(self) -> Iterator[WaitingStack]:
        """Yield the due stacks, and forget them."""
        while self._due:
            stored = self._due.popleft()
            record = os.pread(self._file, stored.size, stored.slot * SLOT)
            self._forget(stored)
            yield WaitingStack(pickle.loads(record), stored.spans, stored.number)  # noqa: S301 - nobody else can open the file

    def drop(self) -> list[UnwalkedStack]:
        """Forget all stacks, and return them."""
        dropped = [*self._due, *self._stacks]
        self._due.clear()
        self._stacks.clear()
        for stored in dropped:
            self._forget(stored)
        return [stored.unwalked for stored in dropped]

    def used_files(self) -> set[int]:
        """Return the numbers of all files in the mappings of waiting stacks."""
        # Thousands of stacks share their spans.
        distinct = {id(stored.spans): stored.spans for stored in (*self._stacks, *self._due)}
        return {span.file for spans in distinct.values() for span in spans}

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self, record: bytes, slot: int) -> None:
        """Write a pickled record into a slot of the file, which is created if need be. Raises OSError."""
        if len(record) > SLOT:
            raise OSError
        if self._file < 0:
            with tempfile.TemporaryFile(dir=find_temporary_folder()) as file:
                self._file = os.dup(file.fileno())
        if os.pwrite(self._file, record, slot * SLOT) != len(record):
            raise OSError

    def _forget(self, stored: _StoredStack) -> None:
        """Free a stack's slot, and empty the file once all slots are free."""
        self._free.append(stored.slot)
        self.bytes -= stored.stack_size
        if len(self._free) == self._slots and self._file >= 0:
            os.ftruncate(self._file, 0)
