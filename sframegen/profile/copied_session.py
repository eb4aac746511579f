"""Runs a profile without the kernel program: perf events sample the user's processes with registers and copies of stacks.

Where it is allowed, each CPU has one event, and samples of other processes are dropped. Otherwise each running thread has an event
on each CPU, inherited by its new threads and children; the events of a CPU share a ring buffer. Each thread then begins with a full
sampling period, and is missed if it ends before; the counts of the events show how many samples that costs. The ring buffers also
have the records of mappings. `open_session` chooses between this session and KernelSession.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

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
from sframegen.profile.stack_walks import WAIT, WALK_SECONDS, StackWalks
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
ALL_PROCESSES = -1  # the pid of an event for all processes on a CPU
ENABLE, DISABLE, SET_OUTPUT = 0x2400, 0x2401, 0x2405  # PERF_EVENT_IOC_... requests of ioctl
RING_PAGES = (2048, 1024, 512, 256, 128, 64, 32)  # to try; users may lock 516 KiB for each CPU (kernel.perf_event_mlock_kb)
LARGEST_COPY, SMALLEST_COPY = 65_528, 16_384  # bytes; the kernel shortens copies so that records are smaller than 65,536
RING_SECONDS = 0.2  # seconds of samples that fit into a ring buffer, because this process may wait that long for a CPU
PAGE = 4096
RING_FULL = "the ring buffer was full"
NOT_REACHED = "in threads and processes that ended before a sampling period was over"
NOT_REACHED_OR_KERNEL = f"in the kernel, and {NOT_REACHED}"
MAX_RATE_BY_CPU = 5_000  # samples per second on all CPUs, up to which copies of other processes' stacks are made and dropped
MIN_MISSED_SHARE = 0.05  # of all samples; a smaller share is not reported, because it is within the error of the estimate
NO_REGISTERS = "no registers: a thread of the kernel, or one that was ending"
NO_64_BITS = "32-bit code, for which there are no tables"
NO_STACK = "the kernel copied nothing of the stack"
FIRST_CONTEXT_MARKER = (1 << 64) - 4096  # from here on, the words of a call chain are PERF_CONTEXT_... markers, not addresses
KERNEL_ADDRESS_BIT = 63  # this bit is set in addresses of the kernel
USER_ONLY = "time in the kernel is not sampled: that needs root, CAP_PERFMON, or kernel.perf_event_paranoid of 1 or less"


def choose_copy_size(frequency: int, ring_bytes: int) -> int:
    """Return the largest size of a stack copy, in bytes, with which samples of RING_SECONDS fit into a ring buffer."""
    fitting_size = int(ring_bytes / max(frequency * RING_SECONDS, 1)) & ~7  # the kernel takes multiples of 8
    return max(SMALLEST_COPY, min(LARGEST_COPY, fitting_size))


class RegisterLayout:
    """The order of registers in samples. `mask`: the attributes' user_registers. Raises FormatError if PC or SP is missing."""

    def __init__(self, abi: Abi, mask: int) -> None:
        sampled = conventions_of(abi).sampled
        if sampled is None:
            raise FormatError(f"samples of {abi.name} are not read")
        present = [number for number in range(mask.bit_length()) if mask >> number & 1]
        # By DWARF number: the index in the sample, which has the registers in the order of the bits in the mask.
        indices = {number: present.index(bit) for number, bit in sampled.places.items() if bit in present}
        if sampled.pc not in present or abi.sp not in indices:
            raise FormatError("samples have no program counter or stack pointer")
        self.sp = abi.sp
        self._pc = present.index(sampled.pc)
        self._indices = [indices.get(number) for number in range(REGISTERS)]
        self._known = sum(1 << number for number in indices)

    def make_start(self, registers: Sequence[int]) -> Start:
        """Return the start of a walk from a sample's registers."""
        values = [0 if index is None else registers[index] for index in self._indices]
        return Start(values, self._known, registers[self._pc])


def registers_mask(abi: Abi) -> int:
    """Return the mask of all registers that a walk can use, for an event's attributes."""
    sampled = conventions_of(abi).sampled
    return sum(1 << number for number in {sampled.pc, *sampled.places.values()}) if sampled else 0


class CopiedSession:
    """Samples processes and their descendants without the kernel program. Same methods as KernelSession. Raises SframegenError."""

    def __init__(self, plan: ProfilePlan) -> None:
        if plan.targets is None:
            raise SframegenError(f"only the kernel program can sample all processes, run by {describe_root()}")
        self.plan = plan
        self.samples = 0
        with ExitStack() as opened:
            self._builder = opened.enter_context(closing(TableBuilder(WORKERS, TableCache(), stores=plan.stores)))
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
            self._before_exec: frozenset[int] = frozenset()  # processes whose samples count only after their exec
            self._descriptors: list[int] = []
            self._rings = CpuRings()  # with the first event on each CPU; `_descriptors` are those of further events
            opened.callback(self._close_events)
            self._cpus = sorted(online_cpus())
            self._attributes = self._choose_attributes(self._make_attributes())
            self._attach(plan.targets)
            self._reader = RecordReader(self._attributes)
            self._layout = RegisterLayout(self.abi, self._attributes.user_registers)
            self._poll = select.epoll()
            opened.callback(self._poll.close)
            for fileno in (*self._rings.filenos, self._builder.fileno()):
                self._poll.register(fileno, select.EPOLLIN)
            self._opened = opened.pop_all()

    def close(self) -> None:
        self._opened.close()

    def begin(self) -> None:
        """Enable the events. With `after_exec`, a target's exec enables them, or makes its samples count."""
        self.collected.started = time.time()
        self._began = time.monotonic()
        if self._by_cpu and self.plan.after_exec:
            self._before_exec = self.plan.targets or frozenset()
        if self._by_cpu or not self.plan.after_exec:
            for descriptor in (*self._rings.filenos, *self._descriptors):
                fcntl.ioctl(descriptor, ENABLE, 0)

    def advance(self) -> None:
        """Wait briefly for records and tables, and process them."""
        self._poll.poll(0 if self._walks.has_due else WAIT)
        self._receive_records()
        self.collected.seconds = time.monotonic() - self._began

    def finish(self) -> Collected:
        """End sampling, walk all waiting stacks, and return what was sampled."""
        collected = self.collected
        for descriptor in (*self._rings.filenos, *self._descriptors):
            fcntl.ioctl(descriptor, DISABLE, 0)
        self._receive_records()
        while self._walks.has_due or (self._walks and self._builder.pending):
            select.select([self._builder.fileno()], [], [], 0 if self._walks.has_due else WAIT)
            self._walks.take_tables()
            self._walks.walk_due(WALK_SECONDS)
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
        """Return an estimate of the missing samples, from the events' CPU times and counts; 0 if it is unknown, or small."""
        event, frequency = self.plan.event, self.plan.frequency
        if self._by_cpu or (event.by_frequency and event.name not in CLOCKS):
            return 0
        counts = [read_counts(descriptor) for descriptor in (*self._rings.filenos, *self._descriptors)]
        if event.by_frequency:
            expected = sum(count.running for count in counts) * frequency // SECOND
        else:
            expected = sum(count.happened for count in counts) // frequency
        missed = expected - self.samples - self._rings.lost
        return missed if missed > MIN_MISSED_SHARE * expected else 0

    def _receive_records(self) -> None:
        """Apply the records of processes up to now, and walk or queue the samples."""
        now = time.monotonic_ns()
        self._rings.collect()
        for record_time, _, kind, misc, body in self._rings.take_until(now):
            if kind == GAP:  # then `misc` is the time of its end
                self._rescan_after_gap(record_time, misc)
                continue
            record = self._reader.read(kind, misc, body)
            if isinstance(record, SampleRecord):
                if not self._by_cpu or (record.pid in self.processes and record.pid not in self._before_exec):
                    self.samples += 1
                    self._walk_sample(record)
            elif record is not None:
                self.processes.apply(record, record_time)
                if isinstance(record, CommRecord) and record.by_exec:
                    self._before_exec -= {record.pid}
        self.processes.drop_ended(now)
        for pid in self.processes.ended:
            self.collected.read_perf_map(pid)
        self.processes.ended.clear()
        self.processes.changed.clear()
        self._walks.take_tables()
        self._walks.walk_due(WALK_SECONDS)

    def _rescan_after_gap(self, begin: int, end: int) -> None:
        """Read mappings and descendants again, because records of them may be missing from that time."""
        self.processes.forget_mappings(begin, end)
        if self._by_cpu:
            self._before_exec = frozenset()
            follow_descendants(set(self.plan.targets or ()), self._scan)

    def _scan(self, pid: int) -> None:
        scan_process(pid, self.processes, self._resolver, time.monotonic_ns())

    def _close_events(self) -> None:
        """Close the events. Files stay open, because the report reads names from them."""
        self._rings.close_all()
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _make_attributes(self) -> EventAttributes:
        """Return the attributes that the plan needs, if the kernel allows all of them."""
        event = self.plan.event
        flags = EventFlag.DISABLED | EventFlag.INHERIT | FOLLOWING
        flags |= EventFlag.EXCLUDE_HYPERVISOR | EventFlag.EXCLUDE_CALLCHAIN_USER
        flags |= EventFlag.FREQUENCY * event.by_frequency | EventFlag.ENABLE_ON_EXEC * self.plan.after_exec
        sampled = SampleType.TID | SampleType.TIME | SampleType.CPU | SampleType.REGS_USER | SampleType.STACK_USER
        return EventAttributes(
            event.type, config=event.config, period=self.plan.frequency,
            sample_type=sampled | SampleType.CALLCHAIN * self.plan.kernel, flags=flags, read_format=READ_TIMES,
            user_registers=registers_mask(self.abi), user_stack=SMALLEST_COPY, clock=CLOCK_MONOTONIC,
        )  # fmt: skip

    def _choose_attributes(self, full: EventAttributes) -> EventAttributes:
        """Return the best attributes that the kernel allows: for all processes of a CPU, by thread, or without kernel code."""
        by_cpu = replace(full, flags=full.flags & ~(EventFlag.INHERIT | EventFlag.ENABLE_ON_EXEC))
        sample_type = full.sample_type & ~SampleType.CALLCHAIN
        user_only = replace(full, flags=full.flags | EventFlag.EXCLUDE_KERNEL, sample_type=sample_type)
        candidates = [(full, 0, -1)]
        # Dropping too many samples of other processes would cost more than missing the first period of each thread.
        if 0 < self.plan.event.hertz(self.plan.frequency) * len(self._cpus) <= MAX_RATE_BY_CPU:
            candidates.insert(0, (by_cpu, ALL_PROCESSES, self._cpus[0]))
        for attributes, pid, cpu in candidates:
            try:
                os.close(open_event(attributes, pid, cpu, name=self.plan.event.name))
            except EventError as error:
                if error.number not in (errno.EACCES, errno.EPERM):
                    raise
            else:
                self._by_cpu = pid == ALL_PROCESSES
                return attributes
        os.close(open_event(user_only, 0, -1, name=self.plan.event.name))
        self.collected.notes.append(USER_ONLY)
        return user_only

    def _attach(self, targets: Iterable[int]) -> None:
        """Open events for all threads, including those that begin meanwhile, and read the existing mappings."""
        targets = sorted(targets)
        pages = self._find_allowed_pages(ALL_PROCESSES if self._by_cpu else targets[0])
        size = choose_copy_size(self.plan.frequency, pages * PAGE)
        self._attributes = replace(self._attributes, user_stack=size, wakeup=pages * PAGE // 4)
        if self._by_cpu:
            self._open_events(ALL_PROCESSES, pages)
        for pid in targets:
            if self._by_cpu:  # allowed with samples of all processes, but without the mappings of other users' ones
                os.close(open_event(self._attributes, pid, -1, name=self.plan.event.name))
            if not self._attach_process(pid, pages):
                raise EventError(f"process {pid}: no such process", errno.ESRCH)
        if not self.plan.after_exec:
            follow_descendants(set(targets), lambda pid: self._attach_process(pid, pages))

    def _attach_process(self, pid: int, pages: int) -> bool:
        """Open events for the threads of a process. Return False if it has ended."""
        known_tids: set[int] = set()
        while new_tids := set(proc.threads_of(pid)) - known_tids:
            known_tids |= new_tids
            for tid in () if self._by_cpu else sorted(new_tids):
                self._open_events(tid, pages)
        self._scan(pid)
        return bool(known_tids)

    def _open_events(self, tid: int, pages: int) -> None:
        """Open an event of a thread, or of all processes, on each CPU, and connect it with the CPU's ring buffer."""
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

    def _find_allowed_pages(self, pid: int) -> int:
        """Return the largest number of pages that every CPU's ring buffer may have, by trying."""
        for pages in RING_PAGES:
            trial = CpuRings()
            try:
                for cpu in self._cpus:
                    trial.add(cpu, open_event(self._attributes, pid, cpu, name=self.plan.event.name), pages)
            except EventError as error:
                if error.number != errno.EPERM or pages == RING_PAGES[-1]:
                    raise
            else:
                return pages
            finally:
                trial.close_all()
        raise AssertionError

    def _walk_sample(self, record: SampleRecord) -> None:
        """Walk the stack of a sample with its process's current mappings, or count it as lost."""
        spans = self.processes.spans(record.pid)
        if spans is None and record.pid in self.processes:  # records were lost
            self._scan(record.pid)
            spans = self.processes.spans(record.pid)
        if spans is not None:
            self.collected.open_perf_map(record.pid, spans)
        reason = find_loss_reason(record) if spans is not None else End.NO_PROCESS.words
        if spans is None or reason:
            self._counted.count_lost(UnwalkedStack(record.pid, record.tid), reason)
        else:
            unfinished = make_unfinished_walk(record, self._layout, kernel=self.plan.kernel)
            self._walks.walk(unfinished._replace(task=self._counted.name_task(record.pid, record.tid)), spans)


def find_loss_reason(record: SampleRecord) -> str:
    """Return the reason why a sample cannot be walked; empty if it can."""
    if record.registers_abi != REGISTERS_64:
        return NO_64_BITS if record.registers_abi else NO_REGISTERS
    return "" if len(record.stack) else NO_STACK


def make_unfinished_walk(record: SampleRecord, layout: RegisterLayout, *, kernel: bool) -> UnfinishedWalk:
    """Return a sample as a walk that has not begun. `kernel`: put the kernel's frames before it."""
    start = layout.make_start(record.registers)
    if kernel:
        in_kernel = (address for address in record.callchain if address >> KERNEL_ADDRESS_BIT and address < FIRST_CONTEXT_MARKER)
        start = start._replace(frames=tuple(FileFrame(KERNEL_FILE, address).pack() for address in in_kernel))
    sp, stack = start.values[layout.sp], bytes(record.stack)
    return UnfinishedWalk(
        record.time, record.pid, record.tid, comm="", end=End.NO_PROCESS, start=start, stack_start=sp, stack=stack, missing=0
    )


Session: TypeAlias = KernelSession | CopiedSession
KERNEL, COPIES = BACKENDS = ("kernel", "copies")


def open_session(plan: ProfilePlan, backend: str | None = None) -> tuple[Session, str]:
    """Return a session, and a line on why it falls back to copies of stacks; empty if it does not, or if `backend` requests them.

    Raises SframegenError if neither backend is allowed, or if the requested one is not.
    """
    kernel_only = plan.kernel_only_feature
    if backend == COPIES:
        if kernel_only:
            raise LoadError(f"{kernel_only}: not possible with {COPIES} of stacks")
        return CopiedSession(plan), ""
    try:
        return KernelSession(plan), ""
    except (LoadError, EventError) as error:
        if backend == KERNEL or plan.targets is None or kernel_only:
            raise
        remedies = probe().remedies
        return CopiedSession(plan), "; ".join([f"falling back to stack copies: {error}", *remedies[:1]])
