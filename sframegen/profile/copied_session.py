"""A profile without the kernel program: perf events of the user's processes, with registers and copies of stacks.

Each CPU has an event where that is allowed, and samples of other processes are dropped. Else each thread that runs has an event on
each CPU, which its threads and children inherit; the events of a CPU share one ring buffer. Each thread then begins with a whole
period, so one that ends within it is not sampled: the counts of the events say how much that is. Records of mappings come between
the samples.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING, Self, TypeAlias

from sframegen.base.errors import FormatError, SframegenError
from sframegen.profile.bpf.kernel_records import UnfinishedWalk, UnwalkedStack
from sframegen.profile.bpf.libbpf import LoadError
from sframegen.profile.collected import Collected, list_file_notes
from sframegen.profile.counted_stacks import CountedStacks
from sframegen.profile.events.attributes import (
    CLOCK_MONOTONIC,
    FOLLOWING,
    READ_TIMES,
    EventAttributes,
    EventError,
    EventFlag,
    SampleType,
    open_event,
    read_counts,
)
from sframegen.profile.events.cpu_rings import GAP, CpuRings, online_cpus
from sframegen.profile.events.event_records import REGISTERS_64, CommRecord, RecordReader, SampleRecord
from sframegen.profile.events.names import CLOCKS
from sframegen.profile.following.files import TracedFiles
from sframegen.profile.following.follower import MappingResolver, scan_process
from sframegen.profile.following.processes import Processes
from sframegen.profile.kernel_session import KernelSession
from sframegen.profile.limits import WORKERS
from sframegen.profile.packed_frames import KERNEL_FILE, FileFrame
from sframegen.profile.probe import probe
from sframegen.profile.sampling_plan import SECOND, ProfilePlan, follow_descendants, is_process
from sframegen.profile.stack_walks import WAIT, WALKING, StackWalks
from sframegen.profile.tables.table_builder import TableBuilder
from sframegen.profile.tables.table_cache import TableCache
from sframegen.profile.this_machine import describe_root
from sframegen.profile.walk.copied_stack import Start
from sframegen.stack.abi.machines import conventions_of
from sframegen.stack.live import proc
from sframegen.stack.live.process import host_abi
from sframegen.stack.walking.frames import End
from sframegen.stack.walking.step import REGISTERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sframegen.format.abi import Abi

BACKEND = "walked from copies of stacks (perf events)"
EVERYBODY = -1  # the pid of an event for all processes on a CPU
ENABLE, DISABLE, SET_OUTPUT = 0x2400, 0x2401, 0x2405  # requests of ioctl
PAGES = (2048, 1024, 512, 256, 128, 64, 32)  # of a ring buffer: users may lock 516 KiB for each CPU (kernel.perf_event_mlock_kb)
LARGEST_COPY, SMALLEST_COPY = 65_528, 16_384  # bytes; records are smaller than 65,536, and the kernel shortens the copy to that
ROOM = 0.2  # seconds of samples that a ring buffer should hold: we may wait that long for a processor
PAGE = 4096
RING_FULL = "the ring buffer was full"
NOT_REACHED = "in threads and processes that ended before a sampling period was over"
NOT_REACHED_OR_KERNEL = f"in the kernel, and {NOT_REACHED}"
MOST_BY_CPU = 5_000  # samples a second of all CPUs: each is a copy, also those that are dropped
LEAST_MISSED = 0.05  # share of all samples; fewer are not reported, because running threads do not end with a period, either
NO_REGISTERS = "no registers: a thread of the kernel, or one that was ending"
NO_64_BITS = "32-bit code, for which there are no tables"
NO_STACK = "the kernel copied nothing of the stack"
FIRST_CONTEXT = (1 << 64) - 4096  # of a call chain: markers, not addresses
KERNEL_HALF = 63  # bit of addresses
USER_ONLY = "time in the kernel is not sampled: that needs root, CAP_PERFMON, or kernel.perf_event_paranoid of 1 or less"


def copy_size(frequency: int, ring_bytes: int) -> int:
    """Return the largest size of a stack copy, in bytes, with which a ring buffer does not fill too soon."""
    fits = int(ring_bytes / max(frequency * ROOM, 1)) & ~7
    return max(SMALLEST_COPY, min(LARGEST_COPY, fits))


class RegisterLayout:
    """The order of registers in samples. `mask`: the attributes' user_registers. Raises FormatError if PC or SP is missing."""

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
    """Return the mask of all registers that a walk can use, for an event's attributes."""
    known = conventions_of(abi).sampled
    return sum(1 << number for number in {known.pc, *known.places.values()}) if known else 0


class CopiedSession:
    """Samples processes and descendants without a kernel program; used like KernelSession. Raises EventError, SframegenError."""

    def __init__(self, plan: ProfilePlan) -> None:
        if plan.targets is None:
            raise SframegenError(f"only the kernel program can sample all processes, run by {describe_root()}")
        self.plan = plan
        self.samples = 0
        with ExitStack() as opened:
            self._builder = opened.enter_context(TableBuilder(WORKERS, TableCache(), stores=plan.stores))
            for pid in plan.targets:
                if not is_process(pid):
                    raise SframegenError(f"process {pid}: no such process")
            self.abi = host_abi()
            files, event = TracedFiles(), plan.event
            self.collected = Collected(event.name, BACKEND, event.hertz(plan.frequency), files=files.by_number)
            self.collected.notes += event.notes(plan.frequency)
            self._resolver = MappingResolver(files)
            self.processes = Processes(self._resolver, plan.targets)
            self._counted = CountedStacks(plan, self.processes, self.collected)
            self._walks = opened.enter_context(closing(StackWalks(self.abi, files, self.processes, self._builder, self._counted)))
            self._by_cpu = False
            self._before_exec: frozenset[int] = frozenset()  # processes whose samples by CPU do not count yet
            self._descriptors: list[int] = []
            self._rings = CpuRings()  # of the first event on each CPU
            opened.callback(self._close_events)
            self._cpus = sorted(online_cpus())
            self._attributes = self._find_allowed(self._wished_attributes())
            self._attach(plan.targets)
            self._reader = RecordReader(self._attributes)
            self._layout = RegisterLayout(self.abi, self._attributes.user_registers)
            self._poll = select.epoll()
            opened.callback(self._poll.close)
            for fileno in (*self._rings.filenos, self._builder.fileno()):
                self._poll.register(fileno, select.EPOLLIN)
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def begin(self) -> None:
        self.collected.started = time.time()
        self._began = time.monotonic()
        if self._by_cpu and self.plan.after_exec:
            self._before_exec = self.plan.targets or frozenset()
        if self._by_cpu or not self.plan.after_exec:
            for descriptor in (*self._rings.filenos, *self._descriptors):
                fcntl.ioctl(descriptor, ENABLE, 0)

    def advance(self) -> None:
        self._poll.poll(0 if self._walks.has_due else WAIT)
        self._receive()
        self.collected.seconds = time.monotonic() - self._began

    def finish(self) -> Collected:
        """End sampling, walk all waiting stacks, and return what was sampled."""
        collected = self.collected
        for descriptor in (*self._rings.filenos, *self._descriptors):
            fcntl.ioctl(descriptor, DISABLE, 0)
        self._receive()
        while self._walks.has_due or (self._walks and self._builder.pending):
            select.select([self._builder.fileno()], [], [], 0 if self._walks.has_due else WAIT)
            self._walks.take_tables()
            self._walks.walk_due(WALKING)
        self._walks.finish()
        collected.notes += list_file_notes(collected)
        if self._rings.lost:
            collected.lost[RING_FULL] += self._rings.lost
        if missed := self._count_missed():
            user_only = self._attributes.flags & EventFlag.EXCLUDE_KERNEL
            collected.lost[NOT_REACHED_OR_KERNEL if user_only else NOT_REACHED] = missed
        collected.seconds = time.monotonic() - self._began
        collected.keep_threads(self.plan.tids)
        return collected

    def _count_missed(self) -> int:
        """Return how many samples are missing, judged by CPU time and counts; 0 if unknown, or if they are few."""
        event, frequency = self.plan.event, self.plan.frequency
        if self._by_cpu or (event.by_frequency and event.name not in CLOCKS):
            return 0
        counts = [read_counts(descriptor) for descriptor in (*self._rings.filenos, *self._descriptors)]
        if event.by_frequency:
            expected = sum(one.running for one in counts) * frequency // SECOND
        else:
            expected = sum(one.happened for one in counts) // frequency
        missed = expected - self.samples - self._rings.lost
        return missed if missed > LEAST_MISSED * expected else 0

    def _receive(self) -> None:
        """Read the records up to now: follow processes, and count samples."""
        now = time.monotonic_ns()
        self._rings.collect()
        for at, _, kind, misc, body in self._rings.take_until(now):
            if kind == GAP:
                self._close_gap(at, misc)
                continue
            record = self._reader.read(kind, misc, body)
            if isinstance(record, SampleRecord):
                if not self._by_cpu or (record.pid in self.processes and record.pid not in self._before_exec):
                    self.samples += 1
                    self._sample(record)
            elif record is not None:
                self.processes.apply(record, at)
                if isinstance(record, CommRecord) and record.by_exec:
                    self._before_exec -= {record.pid}
        self.processes.drop_ended(now)
        for pid in self.processes.ended:
            self.collected.read_perf_map(pid)
        self.processes.ended.clear()
        self.processes.changed.clear()
        self._walks.take_tables()
        self._walks.walk_due(WALKING)

    def _close_gap(self, begin: int, end: int) -> None:
        """Rescan after missing records of that time, which may have been of mappings or new descendants."""
        self.processes.forget_mappings(begin, end)
        if self._by_cpu:
            self._before_exec = frozenset()
            follow_descendants(set(self.plan.targets or ()), self._scan)

    def _scan(self, pid: int) -> None:
        scan_process(pid, self.processes, self._resolver, time.monotonic_ns())

    def _close_events(self) -> None:
        """Close the events; files stay open, for names."""
        self._rings.close_all()
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _wished_attributes(self) -> EventAttributes:
        event = self.plan.event
        flags = EventFlag.DISABLED | EventFlag.INHERIT | FOLLOWING
        flags |= EventFlag.EXCLUDE_HYPERVISOR | EventFlag.EXCLUDE_CALLCHAIN_USER
        flags |= EventFlag.FREQUENCY * event.by_frequency | EventFlag.ENABLE_ON_EXEC * self.plan.after_exec
        sampled = SampleType.TID | SampleType.TIME | SampleType.CPU | SampleType.REGS_USER | SampleType.STACK_USER
        return EventAttributes(
            event.type,
            config=event.config,
            period=self.plan.frequency,
            sample_type=sampled | SampleType.CALLCHAIN * self.plan.kernel,
            flags=flags,
            read_format=READ_TIMES,
            user_registers=registers_mask(self.abi),
            user_stack=SMALLEST_COPY,
            clock=CLOCK_MONOTONIC,
        )

    def _find_allowed(self, wish: EventAttributes) -> EventAttributes:
        """Return the attributes that the kernel allows, on a CPU or else on this process; its own code is excluded if need be."""
        by_cpu = replace(wish, flags=wish.flags & ~(EventFlag.INHERIT | EventFlag.ENABLE_ON_EXEC))
        user_only = replace(
            wish, flags=wish.flags | EventFlag.EXCLUDE_KERNEL, sample_type=wish.sample_type & ~SampleType.CALLCHAIN
        )  # fmt: skip
        tried = [(by_cpu, EVERYBODY, self._cpus[0]), (wish, 0, -1)]
        # Dropping too many samples of other processes would cost more than missing the first period of each thread.
        may_drop = 0 < self.plan.event.hertz(self.plan.frequency) * len(self._cpus) <= MOST_BY_CPU
        for attributes, pid, cpu in tried[not may_drop :]:
            try:
                os.close(open_event(attributes, pid, cpu, name=self.plan.event.name))
            except EventError as error:
                if error.number not in (errno.EACCES, errno.EPERM):
                    raise
            else:
                self._by_cpu = pid == EVERYBODY
                return attributes
        os.close(open_event(user_only, 0, -1, name=self.plan.event.name))
        self.collected.notes.append(USER_ONLY)
        return user_only

    def _attach(self, targets: Iterable[int]) -> None:
        """Open events for all threads, also those that begin meanwhile, then read the existing mappings."""
        targets = sorted(targets)
        pages = self._pages_allowed(EVERYBODY if self._by_cpu else targets[0])
        size = copy_size(self.plan.frequency, pages * PAGE)
        self._attributes = replace(self._attributes, user_stack=size, wakeup=pages * PAGE // 4)
        if self._by_cpu:
            self._open(EVERYBODY, pages)
        for pid in targets:
            if not self._attach_process(pid, pages):
                raise EventError(f"process {pid}: no such process", errno.ESRCH)
        if not self.plan.after_exec:
            follow_descendants(set(targets), lambda pid: self._attach_process(pid, pages))

    def _attach_process(self, pid: int, pages: int) -> bool:
        """Open events for the threads of a process. Return False if it has ended."""
        seen: set[int] = set()
        while new := set(proc.threads_of(pid)) - seen:
            seen |= new
            for tid in () if self._by_cpu else sorted(new):
                self._open(tid, pages)
        self._scan(pid)
        return bool(seen)

    def _open(self, tid: int, pages: int) -> None:
        for cpu in self._cpus:
            try:
                descriptor = open_event(self._attributes, tid, cpu, name=self.plan.event.name)
            except EventError as error:
                if error.number in (errno.ESRCH, errno.ENODEV):  # the thread has ended, or the CPU was taken away
                    continue
                raise
            if cpu not in self._rings.by_cpu:
                self._rings.add(cpu, descriptor, pages)
                continue
            self._descriptors.append(descriptor)
            fcntl.ioctl(descriptor, SET_OUTPUT, self._rings.by_cpu[cpu][0])

    def _pages_allowed(self, pid: int) -> int:
        """Return the most pages that all ring buffers may have together."""
        for pages in PAGES:
            tried = CpuRings()
            try:
                for cpu in self._cpus:
                    tried.add(cpu, open_event(self._attributes, pid, cpu, name=self.plan.event.name), pages)
            except EventError as error:
                if error.number != errno.EPERM or pages == PAGES[-1]:
                    raise
            else:
                return pages
            finally:
                tried.close_all()
        raise AssertionError

    def _sample(self, record: SampleRecord) -> None:
        """Walk the stack of a sample, with the mappings of this moment."""
        spans = self.processes.spans(record.pid)
        if spans is None and record.pid in self.processes:  # records were lost
            self._scan(record.pid)
            spans = self.processes.spans(record.pid)
        if spans is not None:
            self.collected.open_perf_map(record.pid, spans)
        reason = why_lost(record) if spans is not None else End.NO_PROCESS.words
        if spans is None or reason:
            self._counted.count_lost(UnwalkedStack(record.pid, record.tid), reason)
        else:
            unfinished = unfinished_of(record, self._layout, kernel=self.plan.kernel)
            self._walks.walk(unfinished._replace(task=self._counted.name_task(record.pid, record.tid)), spans)


def why_lost(record: SampleRecord) -> str:
    """Return why a sample cannot be walked; empty if it can."""
    if record.registers_abi != REGISTERS_64:
        return NO_64_BITS if record.registers_abi else NO_REGISTERS
    return "" if len(record.stack) else NO_STACK


def unfinished_of(record: SampleRecord, layout: RegisterLayout, *, kernel: bool) -> UnfinishedWalk:
    """Return a sample as a walk that has not begun. `kernel`: include frames of the kernel."""
    start = layout.start(record.registers)
    if kernel:
        in_kernel = (address for address in record.callchain if address >> KERNEL_HALF and address < FIRST_CONTEXT)
        start = start._replace(frames=tuple(FileFrame(KERNEL_FILE, address).pack() for address in in_kernel))
    sp, stack = start.values[layout.sp], bytes(record.stack)
    return UnfinishedWalk(record.time, record.pid, record.tid, "", End.NO_PROCESS, start, sp, stack, 0)


Session: TypeAlias = KernelSession | CopiedSession
KERNEL, COPIES = BACKENDS = ("kernel", "copies")


def open_session(plan: ProfilePlan, backend: str | None = None) -> tuple[Session, str]:
    """Return the session, and a line on why it does not use the kernel program; empty if it does, or if `backend` asks for copies.

    Raises SframegenError if neither is allowed, or if the named `backend` is not.
    """
    needs = plan.kernel_only_feature
    if backend == COPIES:
        if needs:
            raise LoadError(f"{needs}: not possible with {COPIES} of stacks")
        return CopiedSession(plan), ""
    try:
        return KernelSession(plan), ""
    except (LoadError, EventError) as error:
        if backend == KERNEL or plan.targets is None or needs:
            raise
        remedies = probe().remedies
        return CopiedSession(plan), "; ".join([f"falling back to stack copies: {error}", *remedies[:1]])
