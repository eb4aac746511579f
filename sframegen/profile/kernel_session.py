"""Runs a profile with the kernel program: follows processes, requests tables, and finishes the walks that the program cannot.

The kernel program walks a stack only with mappings that were published: read from /proc, and given to it. An epoch is the time in
which published mappings are valid: new memory in place of a mapping ends it. A sample of a process without valid mappings arrives
as an unfinished walk, which makes the process due to be published, and is walked in this process.
"""

from __future__ import annotations

import resource
import select
import time
from collections import Counter
from contextlib import ExitStack, closing, suppress

from sframegen.base.text import format_count
from sframegen.profile.bpf.kernel_records import LOSS_REASONS, NewArea, NewStack, UnfinishedWalk
from sframegen.profile.bpf.kernel_walker import KernelWalker
from sframegen.profile.collected import Collected, list_file_notes
from sframegen.profile.counted_stacks import RAN_AGAIN, CountedStacks, read_stack_while_asleep
from sframegen.profile.events.attributes import EventError
from sframegen.profile.following.follower import Follower
from sframegen.profile.limits import MAX_FILES, WORKERS
from sframegen.profile.sampling_plan import ProfilePlan, follow_descendants, is_process
from sframegen.profile.stack_walks import MAX_WAIT_AT_END, NO_TABLE_IN_TIME, WAIT, WALK_SECONDS, StackWalks
from sframegen.profile.tables.table_builder import TableBuilder
from sframegen.profile.tables.table_cache import TableCache
from sframegen.profile.this_machine import list_pids, raise_open_file_limit, raised_priority
from sframegen.program.helper import helpers
from sframegen.stack.live.process import host_abi
from sframegen.stack.names.demangle import begin_demangling
from sframegen.stack.snapshot import StackError
from sframegen.stack.walking.frames import End

LONG_PUBLICATION = 0.05  # seconds of CPU time; a process that takes longer is not published again for PAUSE_FACTOR times as long
PAUSE_FACTOR = 10


class Publications:
    """Gives the kernel program the mappings of sampled processes. `due`: processes whose current mappings it lacks."""

    def __init__(self, walker: KernelWalker, follower: Follower, collected: Collected) -> None:
        self._walker, self._follower, self._collected = walker, follower, collected
        self.sampled: set[int] = set()
        self.due: set[int] = set()
        self._published: dict[int, int] = {}  # when a process was last published, in nanoseconds, by pid
        self._not_before: dict[int, float] = {}  # when a process with very many mappings may be published again

    def note_sample(self, record: UnfinishedWalk) -> None:
        """Mark the process of a sample that the kernel program could not walk as due, unless it was published since."""
        self.sampled.add(record.pid)
        # Samples from before the last publication do not count, because the kernel cannot walk any while mappings are being read.
        if record.end is not End.NO_TABLE and record.nanoseconds > self._published.get(record.pid, 0):
            self.due.add(record.pid)

    def publish(self) -> None:
        """Publish the due processes that need not pause. Stacks of the others are walked in this process."""
        processes, now = self._follower.processes, time.monotonic()
        drained_until = self._follower.drain()  # only once, before any epoch begins, because later mappings end the epoch
        self.due |= processes.changed & self.sampled
        for pid in processes.changed - self.sampled:
            self._walker.forget(pid)  # the mappings that it got from its parent are outdated
        processes.changed.clear()
        for pid in processes.ended:
            self._forget(pid)
        processes.ended.clear()
        due = [pid for pid in self.due if self._not_before.get(pid, 0) <= now]
        self.due.difference_update(due)
        for pid in due:
            began = time.process_time()
            epoch = self._walker.begin_epoch(pid)
            # Scanned, because records do not tell which mappings have been unmapped since.
            spans = processes.spans(pid) if self._follower.scan(pid, drained_until) else None
            processes.changed.discard(pid)
            if spans is not None:
                self._published[pid] = time.monotonic_ns()
                self._walker.publish(pid, spans, epoch)
                self._collected.open_perf_map(pid, spans)
            if (took := time.process_time() - began) > LONG_PUBLICATION:
                self._not_before[pid] = time.monotonic() + PAUSE_FACTOR * took

    def _forget(self, pid: int) -> None:
        """Forget a process that has ended, but read its perf map."""
        self._walker.forget(pid)
        self._collected.read_perf_map(pid)
        self._collected.stacks.tasks.forget(pid)
        self.sampled.discard(pid)
        self.due.discard(pid)
        self._published.pop(pid, None)
        self._not_before.pop(pid, None)


def begin_helpers() -> None:
    """Fork helpers early, because a later fork would share, and so pin, more memory. On failure, their first use tells."""
    with suppress(OSError):
        helpers().begin()
        begin_demangling()


BACKEND = "walked in the kernel (BPF)"
MAX_BUILDERS = 1 + WORKERS  # processes that make tables: one more, because each waits for us to take its table
CHECK_INTERVAL = 1.0  # seconds between two checks for unreported changes
MAX_WAIT_AT_BEGIN = 0.5  # seconds that sampling waits for the tables of running processes
CHECKS_PER_RELEASE = 10  # checks between two releases of unused files
SCANS = 2  # of the list of processes, because processes may fork before they are scanned
NO_ROOM = "the memory for tables was full: its table was used outside of the kernel only"


class KernelSession:
    """A profile. Call `begin`, then `advance` until it ends, then `finish`, then `close`. Raises LoadError, EventError."""

    def __init__(self, plan: ProfilePlan) -> None:
        self.plan = plan
        self.collected = Collected(plan.event_label, BACKEND, plan.hertz, plan.unit)
        self.collected.notes += plan.event.notes(plan.frequency) * plan.on_cpu
        self._new: list[UnfinishedWalk] = []  # new samples to walk in this process
        self._drained = 0  # nanoseconds up to which all records were applied
        self._next_check = self._next_release = 0.0  # by time.monotonic
        self._is_sampling = False
        with ExitStack() as opened:
            opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, raise_open_file_limit())
            opened.enter_context(raised_priority())
            begin_helpers()  # they inherit the raised priority
            self._cache = TableCache()
            self._builder = opened.enter_context(closing(TableBuilder(MAX_BUILDERS, self._cache, stores=plan.stores)))
            self.follower = Follower(plan.targets)
            opened.callback(self.follower.close)
            self._files = self.follower.files
            self.collected.files = self._files.by_number
            self._counted = CountedStacks(plan, self.follower.processes, self.collected)
            self._walker = KernelWalker(plan)
            opened.callback(self._walker.close)
            self._publications = Publications(self._walker, self.follower, self.collected)
            walks = StackWalks(host_abi(), self._files, self.follower.processes, self._builder, self._counted, self._walker)
            self._walks = opened.enter_context(closing(walks))
            self._poll = opened.enter_context(select.epoll())
            self._polled = set(self.follower.filenos)
            for fileno in (*self._polled, self._walker.ring.fileno, self._builder.fileno()):
                self._poll.register(fileno, select.EPOLLIN)
            self._opened = opened.pop_all()

    def close(self) -> None:
        self._opened.close()

    def begin(self) -> None:
        """Read the mappings of running processes, and begin to sample."""
        sampled = self._publications.sampled
        self._walker.follow()
        self._walker.ring.start(WAIT / 2, self.follower.collect)
        if self.plan.targets is not None:
            for pid in self.plan.targets:
                if not self.follower.scan(pid) and not is_process(pid):
                    raise StackError(f"process {pid}: no such process")
            sampled |= self.plan.targets
            follow_descendants(sampled, self._walker.sample_process)
            self._publications.due |= sampled
        else:
            for _ in range(SCANS):
                sampled.update(pid for pid in list_pids() if pid not in sampled and self.follower.scan(pid))
        self._walks.request_new()
        self._walks.take_tables()
        deadline = time.monotonic() + MAX_WAIT_AT_BEGIN
        while self._builder.pending and time.monotonic() < deadline:  # without tables, stacks are copied, and deep ones cut off
            select.select([self._builder.fileno()], [], [], WAIT)
            self._walks.take_tables()
        self._publications.publish()
        self.collected.started = time.time()
        self._began = time.monotonic()
        self._walker.attach()
        self._is_sampling = True

    def advance(self) -> None:
        """Wait briefly for new records and tables, and process them."""
        self._wait()
        self._receive()
        self.collected.seconds = time.monotonic() - self._began

    def finish(self) -> Collected:
        """End sampling, wait for outstanding tables, and return all that was sampled."""
        self._is_sampling = False
        self._walker.detach()
        collected = self.collected
        collected.seconds = time.monotonic() - self._began
        self._receive()
        deadline = time.monotonic() + MAX_WAIT_AT_END
        while self._walker.lacks_records or ((self._new or self._walks) and time.monotonic() < deadline):
            self._wait()
            self._receive()
        self._walks.finish()
        for record in self._new:
            self._counted.count_lost(record.unwalked, NO_TABLE_IN_TIME)
        self._counted.add_counts(self._walker.take_counts(), last=True)
        self._complete_result()
        self._walker.close()  # early, because its buffer may take 64 MiB while the report finds names
        self._builder.close()
        return collected

    @property
    def samples(self) -> int:
        """Return the number of samples so far, without those that wait to be walked."""
        return self.collected.stacks.samples

    def _wait(self) -> None:
        """Wait for new records or tables, unless some are there already."""
        if not (self._walker.ring.has_more or self._walks.has_due):
            self._poll.poll(WAIT)

    def _receive(self) -> None:
        """Process new records and tables: one turn of the session's loop."""
        drained_before = self._drained
        self._read_records()
        self._check_now_and_then()
        self._walks.request_new()
        self._walks.take_tables()
        self._publications.publish()
        self._walk_new()
        self._walks.take_tables()  # again, because a builder stays idle until its last table is taken
        self._walks.walk_due(WALK_SECONDS)
        # Ended processes are dropped only after their last samples have been walked.
        self.follower.processes.drop_ended(min(drained_before, self._walker.ring.taken_until))
        self._counted.add_counts(self._walker.take_counts())

    def _read_records(self) -> None:
        """Take the kernel program's records, then apply all records of mappings from before them."""
        records, self._drained = self._walker.poll(0), self.follower.drain()
        for record in records:
            match record:
                case NewStack():
                    self._counted.keep_stack(record)
                case UnfinishedWalk():
                    self._queue_walk(record)
                case NewArea():
                    self.follower.processes.apply_unmapping(record.pid, record.start, record.end, record.nanoseconds)

    def _check_now_and_then(self) -> None:
        """Check for changes that no record reports: rewritten files, and CPUs that come and go."""
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + CHECK_INTERVAL
        self.collected.stacks.room.release_pages()
        self.follower.check_files()
        filenos = set(self.follower.filenos)
        if filenos != self._polled and self._is_sampling:
            with suppress(EventError):  # the CPU is gone again
                self._walker.attach()
        for fileno in filenos - self._polled:  # epoll itself drops closed descriptors
            self._poll.register(fileno, select.EPOLLIN)
        self._polled = filenos
        if now >= self._next_release:
            self._next_release = now + CHECKS_PER_RELEASE * CHECK_INTERVAL
            self._release_files()
            self._files.release_pages()

    def _release_files(self) -> None:
        """Close the files that no process maps and no stack needs for names, so that they do not accumulate."""
        used = self.follower.processes.files_in_use() | self.collected.stacks.used_files() | self._walks.used_files()
        for number in self._files.release_unused(used):
            self._walks.forget(number)
            self._walker.drop_table(number)

    def _queue_walk(self, record: UnfinishedWalk) -> None:
        """Queue a walk that the kernel program could not finish, with its stack, or count the sample as lost."""
        self._publications.note_sample(record)
        with_stack = read_stack_while_asleep(record, self._walker) if record.asleep else record
        if with_stack:
            self._new.append(with_stack)
        else:
            self._counted.count_lost(record.unwalked, RAN_AGAIN)

    def _walk_new(self) -> None:
        """Walk the queued samples, except those that are newer than the records applied so far."""
        new, self._new = self._new, []
        for record in new:
            spans = self.follower.processes.spans(record.pid, record.nanoseconds)
            if record.nanoseconds > self._drained:  # mappings from before it may still be unknown
                self._new.append(record)
            elif spans is None:
                self._counted.count_lost(record.unwalked, self.follower.processes.explain_unknown(record.pid, record.nanoseconds))
            else:
                self.collected.open_perf_map(record.pid, spans)
                self._walks.walk(record, spans)

    def _complete_result(self) -> None:
        collected = self.collected
        collected.keep_threads(self.plan.tids)
        totals = self._walker.statistics()
        collected.lost.update({reason: totals[number] for number, reason in LOSS_REASONS.items()})
        if self.follower.lost:
            collected.notes.append(f"{format_count(self.follower.lost, 'record')} of mappings lost; they were read again")
        if self._files.refused:
            collected.notes.append(f"more than {MAX_FILES:,} files: {self._files.refused:,} have no names and no tables")
        collected.lost += Counter()  # which drops zeros
        for number in self._walker.refused:
            self._files.by_number[number].why = NO_ROOM
        collected.notes += [*list_file_notes(collected), *filter(None, [self._cache.note])]
