"""Samples processes of this user without BPF: perf events with registers and copies of stacks, walked as they come.

Each thread that runs has an event on each CPU, which its threads and children inherit; the events of a CPU share one ring buffer,
with the records of mappings between the samples.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from sframegen.profile.collected import Collected, notes_on_files
from sframegen.profile.copies.counting import Counting, RegisterLayout, registers_mask
from sframegen.profile.events.attributes import (
    CLOCK_MONOTONIC,
    FOLLOWING,
    EventAttributes,
    EventError,
    EventFlag,
    SampleType,
    disable,
    enable,
    open_event,
)
from sframegen.profile.events.cpu_rings import CpuRings
from sframegen.profile.events.event_records import RecordReader, SampleRecord
from sframegen.profile.events.online_cpus import online_cpus
from sframegen.profile.following.files import TracedFiles
from sframegen.profile.following.follower import MappingResolver, scan
from sframegen.profile.following.processes import Processes
from sframegen.stack.live import proc
from sframegen.stack.live.process import host_abi

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sframegen.profile.copies.counting import Wanted
    from sframegen.profile.events.names import Event
    from sframegen.profile.tables.table_builder import TableBuilder

SET_OUTPUT = 0x2405  # request of ioctl
PAGES = (2048, 1024, 512, 256, 128, 64, 32)  # of a ring buffer: users may lock 516 KiB for each CPU (kernel.perf_event_mlock_kb)
LARGEST_COPY, SMALLEST_COPY = 65_528, 16_384  # bytes; records are smaller than 65,536, and the kernel shortens the copy to that
ROOM = 0.2  # seconds of samples that a ring buffer should hold: so long we may have to wait for a processor
PAGE = 4096
RING_FULL = "the ring buffer was full"
USER_ONLY = "time in the kernel is not sampled: that needs root, CAP_PERFMON, or kernel.perf_event_paranoid of at most 1"


def copy_size(frequency: int, ring_bytes: int) -> int:
    """The largest copy of a stack with which a ring buffer does not fill too soon: with less, deep stacks end too early."""
    fits = int(ring_bytes / max(frequency * ROOM, 1)) & ~7
    return max(SMALLEST_COPY, min(LARGEST_COPY, fits))


class CopySampler:
    """Samples processes and their descendants into `collected`. Raises EventError if the kernel does not allow it."""

    def __init__(
        self,
        targets: Iterable[int],
        event: Event,
        frequency: int,
        wanted: Wanted,
        builder: TableBuilder,
    ) -> None:
        """`frequency`: Hz, or the period of events that are not sampled by time."""
        self.abi = host_abi()
        self.files = TracedFiles()
        backend, hertz = "walked from copies of stacks (perf events)", event.hertz(frequency)
        self.collected = Collected(event.name, backend, hertz, files=self.files.by_number, notes=event.notes(frequency))
        self._resolver = MappingResolver(self.files)
        self.processes = Processes(self._resolver, targets)
        self._name = event.name
        self._counting = Counting(self.abi, self.collected, builder, wanted)
        self._descriptors: list[int] = []
        self._rings = CpuRings()  # of the first event on each CPU
        self._cpus = sorted(online_cpus())
        self._attributes = self._allowed(self._wish(event, frequency, wanted))
        try:
            self._attach(targets, frequency)
        except EventError:
            self.close()
            raise
        self._reader = RecordReader(self._attributes)
        self._layout = RegisterLayout(self.abi, self._attributes.user_registers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def filenos(self) -> list[int]:
        """Return descriptors that are readable when there is something to poll."""
        return self._rings.filenos

    def enable(self) -> None:
        """Begin to sample."""
        for descriptor in (*self._rings.filenos, *self._descriptors):
            enable(descriptor)

    def poll(self) -> int:
        """Count what was sampled up to now; return how many samples there were."""
        now = time.monotonic_ns()
        samples = 0
        self._rings.collect()
        for at, raw in self._rings.until(now):
            record = self._reader.read(raw.kind, raw.misc, raw.body)
            if isinstance(record, SampleRecord):
                samples += 1
                self._sample(record)
            elif record is not None:
                self.processes.apply(record, at)
        self.processes.sweep(now)
        self._counting.forget(self.processes)
        self._counting.take_tables()
        return samples

    def finish(self) -> Collected:
        """End sampling, and walk all that waits."""
        for descriptor in (*self._rings.filenos, *self._descriptors):
            disable(descriptor)
        self.poll()
        self._counting.finish()
        self.collected.notes += notes_on_files(self.collected)
        if self._rings.lost:
            self.collected.lost[RING_FULL] += self._rings.lost
        return self.collected

    def close(self) -> None:
        """Close the events; files stay open, for names."""
        self._rings.close_all()
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _wish(self, event: Event, frequency: int, wanted: Wanted) -> EventAttributes:
        flags = EventFlag.DISABLED | EventFlag.INHERIT | FOLLOWING
        flags |= EventFlag.EXCLUDE_HYPERVISOR | EventFlag.EXCLUDE_CALLCHAIN_USER
        flags |= EventFlag.FREQUENCY * event.by_frequency
        sampled = SampleType.TID | SampleType.TIME | SampleType.CPU | SampleType.REGS_USER | SampleType.STACK_USER
        return EventAttributes(
            event.type,
            config=event.config,
            period=frequency,
            sample_type=sampled | SampleType.CALLCHAIN * wanted.kernel,
            flags=flags,
            user_registers=registers_mask(self.abi),
            user_stack=SMALLEST_COPY,
            clock=CLOCK_MONOTONIC,
        )

    def _allowed(self, wish: EventAttributes) -> EventAttributes:
        """Try the event on this process: with the kernel's part if that is allowed."""
        user_only = replace(
            wish, flags=wish.flags | EventFlag.EXCLUDE_KERNEL, sample_type=wish.sample_type & ~SampleType.CALLCHAIN
        )  # fmt: skip
        try:
            os.close(open_event(wish, 0, -1, name=self._name))
        except EventError as error:
            if error.number not in (errno.EACCES, errno.EPERM):
                raise
            os.close(open_event(user_only, 0, -1, name=self._name))
            self.collected.notes.append(USER_ONLY)
            return user_only
        return wish

    def _attach(self, targets: Iterable[int], frequency: int) -> None:
        """Open events for all threads, those that begin meanwhile too, and then read what is mapped already."""
        targets = sorted(targets)
        pages = self._pages_allowed(targets[0])
        size = copy_size(frequency, pages * PAGE)
        self._attributes = replace(self._attributes, user_stack=size, wakeup=pages * PAGE // 4)
        for pid in targets:
            seen: set[int] = set()
            while new := set(proc.threads_of(pid)) - seen:
                seen |= new
                for tid in sorted(new):
                    self._open(tid, pages)
            if not seen:
                raise EventError(f"process {pid}: no such process", errno.ESRCH)
            scan(pid, self.processes, self._resolver, time.monotonic_ns())

    def _open(self, tid: int, pages: int) -> None:
        for cpu in self._cpus:
            try:
                descriptor = open_event(self._attributes, tid, cpu, name=self._name)
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
                    tried.add(cpu, open_event(self._attributes, pid, cpu, name=self._name), pages)
            except EventError as error:
                if error.number != errno.EPERM or pages == PAGES[-1]:
                    raise
            else:
                return pages
            finally:
                tried.close_all()
        raise AssertionError

    def _sample(self, record: SampleRecord) -> None:
        if record.pid in self.processes and self.processes.spans(record.pid) is None:  # records were lost
            scan(record.pid, self.processes, self._resolver, time.monotonic_ns())
        self._counting.take(record, self._layout, self.processes)
