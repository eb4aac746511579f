"""Walks copied stacks in this process, at once or as soon as the tables of their files are there."""

from __future__ import annotations

import math
import time
from functools import lru_cache
from typing import TYPE_CHECKING

from sframegen.profile.following.follower import GeneratedCode
from sframegen.profile.limits import MAX_WAITING
from sframegen.profile.waiting_stacks import NO_TABLE_IN_TIME, TOO_MANY_WAIT, Waiting, WaitingStacks
from sframegen.profile.walk.copied_stack import CopyWalker
from sframegen.stack.walking.frames import End

if TYPE_CHECKING:
    from sframegen.elf.file import ElfFile
    from sframegen.format.abi import Abi
    from sframegen.profile.bpf.kernel_records import Unfinished
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
        ready = self._builder.ready(self._waiting.wanted())
        for built in ready:
            self._building.discard(built.number)
            self._proving.discard(built.number)
            self._files.by_number[built.number].take(built)
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

    def walk(self, record: Unfinished, spans: ProcessSpans) -> None:
        """Walk a stack and count it, or keep it until the table that it needs is there."""
        end, number = record.end, record.missing
        if end is not End.NO_TABLE or number not in self._building or self._files.by_number[number].ready:
            made = self._made(record.pid, self._processes.program(record.pid))
            columns = self._copies.columns(spans)
            end = self._copies.walk(columns, record.where, record.stack_start, record.stack, record.holes, made.read)
            number = self._copies.missing
        if end is End.NO_TABLE:
            for stack in self._waiting.add(Waiting(record, spans, number)):
                self._counted.lose(stack, TOO_MANY_WAIT)
            if file := self._files.by_number.get(number):
                self._request(file)
            return
        if end is End.COPY_TOO_SHORT and not record.stack:
            end = End.STACK_GONE
        self._counted.add_walked(record, self._copies.frames(), end)

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
            self._counted.lose(stack, NO_TABLE_IN_TIME)
