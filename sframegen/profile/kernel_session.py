"""A profile with the kernel program: it follows processes, has tables made, and finishes what the kernel program could not."""

from __future__ import annotations

import math
import resource
import select
import time
from collections import Counter
from contextlib import ExitStack, closing, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Self

from sframegen.base.text import count_of
from sframegen.profile.bpf.kernel_records import LOST, NewArea, NewStack, Statistic, Unfinished
from sframegen.profile.bpf.kernel_walker import KernelWalker
from sframegen.profile.collected import Collected, notes_on_files
from sframegen.profile.counted_stacks import CountedStacks
from sframegen.profile.events.attributes import EventError
from sframegen.profile.following.follower import Follower, MadeCode
from sframegen.profile.limits import MAX_FILES, MAX_WAITING, WORKERS
from sframegen.profile.off_cpu_stacks import RAN_AGAIN, with_stack
from sframegen.profile.sampling_plan import is_process, with_descendants
from sframegen.profile.tables.table_builder import TableBuilder
from sframegen.profile.tables.table_cache import TableCache
from sframegen.profile.this_machine import all_pids, allow_many_files, going_first
from sframegen.profile.units import MICROSECOND, Unit
from sframegen.profile.waiting_stacks import NO_TABLE_IN_TIME, TOO_MANY_WAIT, Waiting, WaitingStacks
from sframegen.profile.walk.copied_stack import CopyWalker
from sframegen.program.helper import helpers
from sframegen.stack.live.process import host_abi
from sframegen.stack.names.demangle import begin_demangling
from sframegen.stack.snapshot import StackError
from sframegen.stack.walking.frames import End

if TYPE_CHECKING:
    from sframegen.elf.file import ElfFile
    from sframegen.profile.following.files import TracedFile
    from sframegen.profile.following.processes import ProcessSpans
    from sframegen.profile.sampling_plan import ProfilePlan
    from sframegen.profile.tables.decoded_table import DecodedTable


LONG, SHARE = 0.05, 10  # seconds of CPU time to publish a process, from which on that is done one tenth of the time


class Publications:
    """`due`: processes that the kernel program needs, and does not know as they are now."""

    def __init__(self) -> None:
        self.due: set[int] = set()
        self._published: dict[int, int] = {}  # nanoseconds: when a process was last
        self._not_before: dict[int, float] = {}  # for processes with very many mappings

    def walked(self, pid: int, nanoseconds: int) -> None:
        """Note a sample that is to be walked here: its process is due, unless it was published since."""
        if nanoseconds > self._published.get(pid, 0):
            self.due.add(pid)

    def take_due(self) -> list[int]:
        """Return those that need not wait. The stacks of the others are walked here meanwhile."""
        now = time.monotonic()
        taken = [pid for pid in self.due if self._not_before.get(pid, 0) <= now]
        self.due.difference_update(taken)
        return taken

    def publishing(self, pid: int) -> None:
        """Note that its mappings, as they are now, are about to be published."""
        self._published[pid] = time.monotonic_ns()

    def took(self, pid: int, seconds: float) -> None:
        """Note the CPU time that it took."""
        if seconds > LONG:
            self._not_before[pid] = time.monotonic() + SHARE * seconds

    def forget(self, pid: int) -> None:
        self.due.discard(pid)
        for known in (self._published, self._not_before):
            known.pop(pid, None)


def begin_helpers() -> None:
    """Fork helpers early: a later fork would pin more memory by copy-on-write. Where none can begin, the first use says so."""
    with suppress(OSError):
        helpers().begin()
        begin_demangling()


BACKEND = "walked in the kernel (BPF)"
BUILDERS = 1 + WORKERS  # processes that make tables: one more, since each waits for our next turn when it is done
WAIT, CHECK = 0.1, 1.0  # seconds: at most, for news; between two looks at what nobody reports
TABLES_AT_THE_BEGIN = 0.5  # seconds that sampling waits for tables of what runs already
TABLES_AT_THE_END = 30.0  # seconds that stacks wait for tables after sampling has ended
WAIT_MS = 100
WALKING = 0.05  # seconds of one turn in which stacks that have waited are walked: meanwhile no table that is ready is used
CHECKS = 10  # of files, to one look at which of them nobody needs
SCANS = 2
MAX_MADE = 64  # processes of whose code in no file something is kept
DROPPED = "the memory for tables was full: its table was used outside of the kernel only"


class KernelSession:
    """Use it as a context: call `begin`, then `turn` until sampling ends, then `finish`. Raises LoadError, EventError."""

    def __init__(self, plan: ProfilePlan) -> None:
        self.plan = plan
        self.collected = Collected(plan.shown_event, BACKEND, plan.hertz, plan.unit)
        self.collected.notes += plan.event.notes(plan.frequency) * plan.on_cpu
        self._sampled: set[int] = set()  # processes whose mappings the kernel program needs
        self._publications = Publications()
        self._new: list[Unfinished] = []  # of the last time
        self._building: set[int] = set()  # files whose tables are being made
        self._proving: set[int] = set()  # of those, files whose code is being read for rules
        self._drained = 0  # nanoseconds: what happened before is known
        self._check_at = self._release_at = 0.0
        self._samples_on = False
        with ExitStack() as opened:
            opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, allow_many_files())
            opened.enter_context(going_first())
            begin_helpers()  # they go first, too
            self._cache = TableCache()
            self._builder = opened.enter_context(TableBuilder(BUILDERS, self._cache, stores=plan.stores))
            self.follower = Follower(plan.targets)
            opened.callback(self.follower.close)
            self._files = self.follower.files
            self.collected.files = self._files.by_number
            self._counted = CountedStacks(plan, self.follower, self.collected)
            self._waiting = opened.enter_context(closing(WaitingStacks()))
            self._walker = KernelWalker(None if plan.targets is None else set(plan.targets), plan.sampling(), plan.max_memory)
            opened.callback(self._walker.close)
            self._copies = CopyWalker(host_abi(), self._elf_of)
            self._made = lru_cache(MAX_MADE)(lambda pid, _program: MadeCode(pid))
            self._poll = opened.enter_context(select.epoll())
            self._polled = set(self.follower.filenos)
            for fileno in (*self._polled, self._walker.fileno, self._builder.fileno()):
                self._poll.register(fileno, select.EPOLLIN)
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    # -- the run

    def begin(self) -> None:
        """Read the mappings of what runs already, and begin to sample."""
        self._walker.follow()
        self._walker.ring.start(WAIT / 2, self.follower.collect)
        if self.plan.targets is not None:
            for pid in self.plan.targets:
                if not self.follower.scan(pid) and not is_process(pid):
                    raise StackError(f"process {pid}: no such process")
            self._sampled |= self.plan.targets
            with_descendants(self._sampled, self._walker.want)
            self._publications.due |= self._sampled
        else:
            for _ in range(SCANS):  # again, for children of processes that were not known yet
                self._sampled.update(pid for pid in all_pids() if pid not in self._sampled and self.follower.scan(pid))
        self._request_tables()
        deadline = time.monotonic() + TABLES_AT_THE_BEGIN
        while self._builder.pending and time.monotonic() < deadline:  # until then deep stacks are cut off
            select.select([self._builder.fileno()], [], [], WAIT_MS / 1000)
            self._take_tables()
        self._publish()
        self.collected.started = time.time()
        self._began = time.monotonic()
        self._walker.attach()
        self._samples_on = True

    def turn(self, seconds: float | None = None) -> None:
        """Wait for news at most that long, and use them."""
        more = self._walker.ring.has_more or self._waiting.has_due
        if not more:
            self._poll.poll(WAIT if seconds is None else seconds)
        self._receive()
        self.collected.seconds = time.monotonic() - self._began

    def finish(self) -> Collected:
        """End sampling, wait for what is still to be made, and return all that was sampled."""
        self._samples_on = False
        self._walker.detach()
        collected = self.collected
        collected.seconds = time.monotonic() - self._began
        self._receive()
        deadline = time.monotonic() + TABLES_AT_THE_END
        while self._walker.lacks_records or ((self._new or self._waiting) and time.monotonic() < deadline):
            self._poll.poll(0 if self._walker.ring.has_more or self._waiting.has_due else WAIT_MS / 1000)
            self._receive()
        self._waiting.make_due(self._stop_waiting_for_proofs())
        self._walk_due()
        for stack in (*self._waiting.drop(), *(record.unwalked for record in self._new)):
            self._counted.lose(stack, NO_TABLE_IN_TIME)
        self._counted.count(self._walker.take_counts(), last=True)
        self._assemble()
        self._walker.close()  # its buffer takes 64 MiB perhaps, and it takes long to find names
        self._builder.close()
        return collected

    @property
    def samples(self) -> int:
        """How many were taken so far, without those that wait to be walked."""
        return self.collected.stacks.samples

    # -- what came

    def _receive(self) -> None:
        before = self._drained
        self._read_records()
        self._check_now_and_then()
        self._request_tables()
        self._waiting.make_due(self._take_tables())
        if self._waiting.bytes > MAX_WAITING // 2:
            self._waiting.make_due(self._stop_waiting_for_proofs())
        self._publish()
        self._walk_new()
        self._waiting.make_due(self._take_tables())  # again: one that makes tables has nothing to do until its last one is taken
        self._walk_due(WALKING)
        # Not before the last samples of those that ended meanwhile have been walked.
        self.follower.processes.sweep(min(before, self._walker.ring.taken_until))
        self._counted.count(self._walker.take_counts())

    def _read_records(self) -> None:
        """Take what the kernel program has sent, then what processes did before that."""
        records, self._drained = self._walker.poll(0), self.follower.drain()
        for record in records:
            match record:
                case NewStack():
                    self._counted.add(record)
                case Unfinished():
                    self._wait_for(record)
                case NewArea():
                    self.follower.processes.unmapped(record.pid, record.start, record.end, record.nanoseconds)

    def _check_now_and_then(self) -> None:
        """Look at what nobody reports: files that are rewritten, CPUs that come and go."""
        now = time.monotonic()
        if now < self._check_at:
            return
        self._check_at = now + CHECK
        self.collected.stacks.room.rest()
        self.follower.check_files()
        filenos = set(self.follower.filenos)
        if filenos != self._polled and self._samples_on:
            with suppress(EventError):  # a CPU that went again meanwhile
                self._walker.attach()
        for fileno in filenos - self._polled:  # closed ones have gone by themselves
            self._poll.register(fileno, select.EPOLLIN)
        self._polled = filenos
        if now >= self._release_at:
            self._release_at = now + CHECKS * CHECK
            self._release_files()
            self._files.rest()

    def _release_files(self) -> None:
        """Close files that no process maps any more and no stack needs for its names: their number does not grow with the time."""
        used = self.follower.processes.files_in_use() | self.collected.stacks.used_files() | self._building | self._waiting.files()
        for number in self._files.release(used):
            self._copies.forget(number)
            self._walker.drop_table(number)
            self._walker.dropped.discard(number)

    def _wait_for(self, record: Unfinished) -> None:
        self._sampled.add(record.pid)
        # While mappings are read for publishing, no sample is walked in the kernel: those say nothing of what is published now.
        if record.end is not End.NO_TABLE:
            self._publications.walked(record.pid, record.nanoseconds)
        found = with_stack(record, self._walker) if record.asleep else record
        if found:
            self._new.append(found)
        else:
            self._counted.lose(record.unwalked, RAN_AGAIN)

    # -- tables

    def _elf_of(self, number: int) -> ElfFile | None:
        return file.elf if (file := self._files.by_number.get(number)) else None

    def _request_tables(self) -> None:
        for file in self._files.take_new():
            if file.elf is not None:
                self._building.add(file.number)
                self._builder.request(file.number, file.elf)
        without = self._files.take_without_table()
        self._add_tables(dict.fromkeys(without))
        self._waiting.make_due({*without})

    def _take_tables(self) -> set[int]:
        """Use those that are ready, and return their numbers."""
        ready = self._builder.ready(self._waiting.wanted())
        for built in ready:
            self._building.discard(built.number)
            self._proving.discard(built.number)
            self._files.by_number[built.number].take(built)
        self._add_tables({built.number: self._files.by_number[built.number].table for built in ready})
        return {built.number for built in ready}

    def _add_tables(self, tables: dict[int, DecodedTable | None]) -> None:
        unproven = {number for number in tables if not self._files.by_number[number].final}
        for number, table in tables.items():
            self._copies.add_table(number, table, final=number not in unproven)
        self._walker.add_tables(tables, unproven=unproven)

    def _request_proof(self, file: TracedFile | None) -> None:
        """Have rules proven for code without any, where a sample was."""
        if file and file.elf is not None and file.ready and not file.final and file.number not in self._proving:
            self._proving.add(file.number)
            self._building.add(file.number)
            self._builder.request_proof(file.number, file.elf)

    def _stop_waiting_for_proofs(self) -> set[int]:
        """Let what waits for rules be walked with guesses: there is too much of it, or it is too late. Return those files."""
        numbers = {number for number in self._proving if not self._files.by_number[number].final}
        for number in numbers:
            self._files.by_number[number].final = True
            self._copies.add_table(number, self._files.by_number[number].table)
            self._walker.end_proof(number)
        return numbers

    # -- mappings

    def _publish(self) -> None:
        """Give the kernel program the mappings that it needs and does not have."""
        processes = self.follower.processes
        drained = self.follower.drain()  # not between the two below: whatever a process maps meanwhile is for the next time
        self._publications.due |= processes.changed & self._sampled
        for pid in processes.changed - self._sampled:
            self._walker.forget(pid)  # from its parent it may have mappings that it has replaced
        processes.changed.clear()
        for pid in processes.ended:
            self._forget(pid)
        processes.ended.clear()
        for pid in self._publications.take_due():
            began = time.process_time()  # not what others take of the CPU, nor the time that files take to open
            epoch = self._walker.epoch(pid)
            # Records are not enough: their mappings may have been unmapped since, and replaced by other code.
            spans = processes.spans(pid) if self.follower.scan(pid, drained) else None
            processes.changed.discard(pid)
            if spans is not None:
                self._publications.publishing(pid)
                self._walker.publish(pid, spans, epoch)
                self.collected.keep_names(pid, spans)
            self._publications.took(pid, time.process_time() - began)

    def _forget(self, pid: int) -> None:
        self._walker.forget(pid)
        self.collected.end_names(pid)
        self.collected.stacks.tasks.forget(pid)
        self._sampled.discard(pid)
        self._publications.forget(pid)

    # -- stacks that are walked here

    def _walk_new(self) -> None:
        new, self._new = self._new, []
        for record in new:
            spans = self.follower.spans(record.pid, record.nanoseconds)
            if record.nanoseconds > self._drained:  # what happened before it is not known yet
                self._new.append(record)
            elif spans is None:
                self._counted.lose(record.unwalked, self.follower.processes.why_unknown(record.pid, record.nanoseconds))
            else:
                self.collected.keep_names(record.pid, spans)
                self._walk(record, spans)

    def _walk_due(self, seconds: float = math.inf) -> None:
        """Walk what waited for tables that are there now, about that long."""
        end = time.monotonic() + seconds
        for one in self._waiting.take_due():
            self._walk(one.record, one.spans)
            if time.monotonic() > end:
                return

    def _walk(self, record: Unfinished, spans: ProcessSpans) -> None:
        end, number = record.end, record.missing
        if end is not End.NO_TABLE or number not in self._building or self._files.by_number[number].ready:
            made = self._made(record.pid, self.follower.processes.program(record.pid))
            columns = self._copies.columns(spans)
            end = self._copies.walk(columns, record.where, record.stack_start, record.stack, record.holes, made.read)
            number = self._copies.missing
        missing = self._files.by_number.get(number)
        if end is End.NO_TABLE:
            self._request_proof(missing)
            for stack in self._waiting.add(Waiting(record, spans, number)):
                self._counted.lose(stack, TOO_MANY_WAIT)
            return
        if end is End.COPY_TOO_SHORT and not record.stack:
            end = End.STACK_GONE
        self._counted.add_walked(record, self._copies.frames(), end, self._walker.sampling.sample_time)

    # -- the result

    def _assemble(self) -> None:
        """Complete what was collected: samples of idle CPUs, what was lost, notes."""
        collected = self.collected
        collected.keep_threads(self.plan.tids)
        totals = self._walker.statistics()
        if self.plan.idle and totals[Statistic.IDLE]:
            collected.stacks.count_idle(totals[Statistic.IDLE])
        collected.lost.update({reason: totals[number] for number, reason in LOST.items()})
        if self.plan.min_block:
            short = Unit.MICROSECONDS.shown(totals[Statistic.SHORT_TIME] // MICROSECOND)
            collected.notes.append(f"left out as too short: {totals[Statistic.SHORT]:,} times off the CPU, {short}")
        if self.follower.lost:
            collected.notes.append(f"{count_of(self.follower.lost, 'record')} of mappings lost; they were read again")
        if self._files.refused:
            collected.notes.append(f"more than {MAX_FILES:,} files: {self._files.refused:,} have no names and no tables")
        collected.lost += Counter()  # without zeros
        for number in self._walker.dropped:
            self._files.by_number[number].why = DROPPED
        collected.notes += [*notes_on_files(collected), *filter(None, [self._cache.note])]
