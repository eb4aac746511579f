"""Samples with registers and a copy of the stack -> counted stacks."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING, NamedTuple

from sframegen.base.errors import FormatError
from sframegen.profile.events.event_records import REGISTERS_64
from sframegen.profile.following.follower import MadeCode
from sframegen.profile.limits import MAX_IN_ORDER
from sframegen.profile.packed_frames import KERNEL_FILE, FileFrame
from sframegen.profile.walk.copied_stack import CopyWalker, Start, span_columns
from sframegen.stack.abi.machines import conventions_of
from sframegen.stack.walking.frames import End
from sframegen.stack.walking.step import REGISTERS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sframegen.base.columns import Bytes, Column
    from sframegen.elf.file import ElfFile
    from sframegen.format.abi import Abi
    from sframegen.profile.collected import Collected
    from sframegen.profile.events.event_records import SampleRecord
    from sframegen.profile.following.files import CodeSpan
    from sframegen.profile.following.processes import Processes
    from sframegen.profile.tables.decoded_table import DecodedTable
    from sframegen.profile.tables.table_builder import TableBuilder
    from sframegen.profile.walk.steps import SpanColumns

NO_REGISTERS = "no registers: a thread of the kernel, or one that was ending"
NO_64_BITS = "32-bit code, for which there are no tables"
NO_STACK = "the kernel copied nothing of the stack"
FIRST_CONTEXT = (1 << 64) - 4096  # of a call chain: markers, not addresses
KERNEL_HALF = 63  # bit of addresses


class RegisterLayout:
    """Where registers are in samples. `mask`: the attributes' user_registers. Raises FormatError if PC or SP is missing."""

    def __init__(self, abi: Abi, mask: int) -> None:
        known = conventions_of(abi).sampled
        if known is None:
            raise FormatError(f"samples of {abi.name} are not read")
        present = [number for number in range(mask.bit_length()) if mask >> number & 1]
        places = {number: present.index(at) for number, at in known.places.items() if at in present}
        if known.pc not in present or abi.sp not in places:
            raise FormatError("samples have no program counter or stack pointer")
        self.sp = abi.sp
        self._pc = present.index(known.pc)
        self._places = [places.get(number) for number in range(REGISTERS)]
        self._known = sum(1 << number for number in places)

    def start(self, registers: Sequence[int]) -> Start:
        values = [0 if at is None else registers[at] for at in self._places]
        return Start(values, self._known, registers[self._pc])


def registers_mask(abi: Abi) -> int:
    """All registers that a walk can use, for an event's attributes."""
    known = conventions_of(abi).sampled
    return sum(1 << number for number in {known.pc, *known.places.values()}) if known else 0


class CopiedSample(NamedTuple):
    """A sample that has not been walked. `spans`: of its process at that time; the same object as long as they do not change."""

    pid: int
    task: int
    start: Start
    stack_start: int
    stack: Bytes
    spans: Sequence[CodeSpan]


class WalkQueue:
    """`done` gets each sample with its end and frames; `request` the number of each file that a walk needs, once."""

    def __init__(
        self,
        walker: CopyWalker,
        request: Callable[[int], None],
        done: Callable[[CopiedSample, End, Column], None],
    ) -> None:
        self.walker = walker
        self.bytes = 0  # of stacks that wait
        self._request = request
        self._done = done
        self._waiting: dict[int, list[CopiedSample]] = {}  # by the number of the file
        self._columns: dict[int, tuple[Sequence[CodeSpan], SpanColumns, MadeCode]] = {}  # by process, with its spans

    def add(self, sample: CopiedSample) -> None:
        """Walk a sample, or keep it until the tables are there."""
        known = self._columns.get(sample.pid)
        if known is None or known[0] is not sample.spans:
            known = self._columns[sample.pid] = sample.spans, span_columns(sample.spans), MadeCode(sample.pid)
        end = self.walker.walk(known[1], sample.start, sample.stack_start, sample.stack, made=known[2].read)
        if end is not End.NO_TABLE:
            self._done(sample, end, self.walker.frames())
            return
        number = self.walker.missing
        self.bytes += len(sample.stack)
        if number in self._waiting:
            self._waiting[number].append(sample)
        else:
            self._waiting[number] = [sample]
            self._request(number)

    def add_table(self, number: int, table: DecodedTable | None, *, final: bool = True) -> None:
        """Use the table of a file, None if there is none, and walk what waited for it. Raises FormatError if it is cut off.

        If it is not `final`, the file is requested again for a walk that finds no rule there.
        """
        self.walker.add_table(number, table, final=final)
        for sample in self._waiting.pop(number, ()):
            self.bytes -= len(sample.stack)
            self.add(sample)

    def forget(self, pid: int) -> None:
        """The process has ended, and no sample of it will come."""
        self._columns.pop(pid, None)


class Counting:
    """Counts samples into `collected`, whose `files` have all numbers that spans can name."""

    def __init__(self, abi: Abi, collected: Collected, builder: TableBuilder, *, threads: bool, kernel: bool) -> None:
        """`threads`: tell them apart. `kernel`: frames of the kernel too, where samples have them."""
        self.collected = collected
        self._builder = builder
        self._threads, self._kernel = threads, kernel
        self._queue = WalkQueue(CopyWalker(abi, self._elf_of), self._request, self._done)
        self._known: list[int] = []  # files whose tables were made before, or that have none

    def take(self, sample: SampleRecord, layout: RegisterLayout, processes: Processes) -> None:
        """Count a sample now, or when its tables are there: of a process whose mappings are those of this moment."""
        pid, tid, spans = sample.pid, sample.tid, processes.spans(sample.pid)
        if spans is None:
            self._lose(End.NO_PROCESS.words)
            return
        self.collected.keep_names(pid, spans)
        tasks, name = self.collected.stacks.tasks, processes.name_of(pid)
        task = tasks.number(pid, tid if self._threads else 0, processes.program(pid))
        tasks.name(task, name, processes.thread_name_of(pid, tid) or name)
        if sample.registers_abi != REGISTERS_64:
            self._lose(NO_64_BITS if sample.registers_abi else NO_REGISTERS)
            return
        if not len(sample.stack):
            self._lose(NO_STACK)
            return
        start = layout.start(sample.registers)
        if self._kernel:
            start = start._replace(frames=_kernel_frames(sample.callchain))
        self._queue.add(CopiedSample(pid, task, start, start.values[layout.sp], sample.stack, spans))
        self.take_tables(wait=self._queue.bytes > MAX_IN_ORDER)

    def take_tables(self, *, wait: bool = False) -> None:
        """Use the tables that are ready. `wait`: for one, if some are being made."""
        if wait and self._builder.pending:
            select.select([self._builder.fileno()], [], [], 1.0)
        for built in self._builder.ready():
            file = self.collected.files[built.number]
            file.take(built)
            if built.why:
                self.collected.notes.append(f"{file.path}: {built.why}")
            self._queue.add_table(built.number, file.table, final=file.final)
        while self._known:
            number = self._known.pop()
            self._queue.add_table(number, self.collected.files[number].table)

    def forget(self, processes: Processes) -> None:
        """Drop what is kept of processes that have ended."""
        for pid in processes.ended:
            self._queue.forget(pid)
            self.collected.end_names(pid)
        processes.ended.clear()
        processes.changed.clear()

    def finish(self) -> None:
        """Walk all that waits."""
        while self._builder.pending:
            self.take_tables(wait=True)

    def _lose(self, why: str) -> None:
        self.collected.lost[why] += 1

    def _elf_of(self, number: int) -> ElfFile | None:
        return self.collected.files[number].elf

    def _request(self, number: int) -> None:
        file = self.collected.files[number]
        if file.elf is None or (file.ready and file.final):
            self._known.append(number)
        elif file.ready:
            self._builder.request_proof(number, file.elf)
        else:
            self._builder.request(number, file.elf)

    def _done(self, sample: CopiedSample, end: End, frames: Column) -> None:
        stacks = self.collected.stacks
        stacks.count(stacks.row(sample.task, frames, end))


def _kernel_frames(chain: Sequence[int]) -> tuple[int, ...]:
    return tuple(
        FileFrame(KERNEL_FILE, address).packed() for address in chain if address >> KERNEL_HALF and address < FIRST_CONTEXT
    )
