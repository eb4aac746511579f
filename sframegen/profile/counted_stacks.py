"""Matches stacks with their counts, which the kernel program sends separately, and adds both to the tree of stacks.

A count has the key (hash of the stack, pid, tid) of its stack. The program sends a stack when it counts it for the first time, and
its counts later. Stacks of threads off the CPU are kept, because their counts come when the threads run again, which may be much
later.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import TYPE_CHECKING, TypeVar

from sframegen.profile.bpf.kernel_records import NO_SAMPLES, CountKey, NewStack, SampleCount, UnfinishedWalk, UnwalkedStack
from sframegen.profile.collected import MICROSECOND, Collected, Unit
from sframegen.profile.following.follower import read_memory
from sframegen.profile.limits import MAX_COPY
from sframegen.profile.packed_frames import is_off_cpu

if TYPE_CHECKING:
    from sframegen.base.columns import Column
    from sframegen.profile.bpf.kernel_walker import KernelWalker
    from sframegen.profile.following.processes import Processes
    from sframegen.profile.sampling_plan import ProfilePlan
    from sframegen.stack.walking.frames import End

T = TypeVar("T")
RAN_AGAIN = "the thread waited when sampling began, and ran again before its stack was read"
MAX_STACKS = 1 << 18  # stacks that are kept; the kernel program sends a dropped one again when it counts it again


def drop_oldest(entries: dict[CountKey, T]) -> None:
    """Drop the oldest entries of the dictionary beyond MAX_STACKS."""
    while len(entries) > MAX_STACKS:
        del entries[next(iter(entries))]


def read_stack_while_asleep(record: UnfinishedWalk, walker: KernelWalker) -> UnfinishedWalk | None:
    """Return the record with the stack of a thread that was asleep when profiling began; None if the thread has run since."""
    memory = read_memory(record.pid, record.stack_start, MAX_COPY)
    return record._replace(stack=memory, asleep=False) if memory and walker.is_asleep(record.tid, record.hash) else None


NOT_RECEIVED = "the stack was not received"
NO_ROOM = "there was no room for more stacks, in memory or on the disk"
KEPT_READINGS = 4  # readings of the kernel program's counts for which the rows of stacks are remembered


class CountedStacks:
    """Counts samples in `collected`, from the kernel program's stacks and counts, and from walks in this process."""

    def __init__(self, plan: ProfilePlan, processes: Processes, collected: Collected) -> None:
        self.collected = collected
        self._plan, self._processes = plan, processes
        self._off_cpu: dict[CountKey, NewStack] = {}  # the newest last; also as a stack that waits for a CPU (NewStack.waiting)
        self._early_counts: dict[CountKey, SampleCount] = {}  # times off the CPU whose stacks are still being walked
        self._why_unwalked: dict[CountKey, str] = {}  # why the stacks of some off-CPU times are unknown
        # Row numbers by the kernel program's key: one dictionary for each of the last readings of counts.
        self._rows: deque[dict[CountKey, int]] = deque([{}], KEPT_READINGS)

    def keep_stack(self, record: NewStack) -> None:
        """Keep a stack that the kernel program walked, for the counts that will come."""
        row = self._add_stack(record, record.frames, record.end)
        if is_off_cpu(record.frames):
            self._keep_off_cpu(record)
        elif row is not None:
            self._rows[-1][record.hash, record.pid, record.tid] = row

    def count_walked(self, record: UnfinishedWalk, frames: Column, end: End) -> None:
        """Count a sample that was walked in this process; keep the stack of a thread off the CPU, whose time comes later."""
        if record.hash:
            kept = array("Q", frames)  # a copy, because the walker reuses its array
            tid = record.tid if self._plan.separates_threads else 0
            stack = NewStack(record.hash, record.pid, tid, end, record.comm, kept)
            self._keep_off_cpu(stack)
            self._keep_off_cpu(stack.as_waiting())
            return
        row = self._add_stack(record, frames, end)
        if row is not None:
            self._add_to_row(row, SampleCount(1, self._plan.sample_time))

    def _keep_off_cpu(self, stack: NewStack) -> None:
        """Keep an off-CPU stack as the newest one."""
        key = (stack.hash, stack.pid, stack.tid)
        self._off_cpu.pop(key, None)  # so that it moves to the end, where the newest are
        self._off_cpu[key] = stack
        drop_oldest(self._off_cpu)

    def count_lost(self, stack: UnwalkedStack, reason: str) -> None:
        """Count a sample as lost. For a thread off the CPU, wait for its time, because its stack may still come."""
        tid = stack.tid if self._plan.separates_threads else 0
        self._why_unwalked.update(((number, stack.pid, tid), reason) for number in stack.hashes)
        if not stack.hashes:
            self.collected.lost[reason] += 1
        drop_oldest(self._why_unwalked)

    def _add_stack(self, record: NewStack | UnfinishedWalk, frames: Column, end: End) -> int | None:
        """Add a stack to the tree, and return its row; None if there is no room, so that it is lost."""
        try:
            task = record.task if isinstance(record, UnfinishedWalk) else None
            if task is None:
                task = self.name_task(record.pid, record.tid, record.comm)
            return self.collected.stacks.find_or_add(task, frames, end)
        except (MemoryError, OSError):
            self.collected.lost[NO_ROOM] += 1
            return None

    def name_task(self, pid: int, tid: int, comm: str = "") -> int:
        """Set the names of a task, and return its number. `comm`: the name of the thread; empty if unknown."""
        processes, tasks = self._processes, self.collected.stacks.tasks
        by_thread = self._plan.separates_threads
        task = tasks.find_number(pid, tid if by_thread else 0, processes.program(pid))
        tasks.set_names(task, processes.name_of(pid) or comm, (comm or processes.thread_name(pid, tid)) if by_thread else "")
        return task

    def _find_row(self, key: CountKey) -> int | None:
        """Return the row of the stack that the kernel program counted with this key, the newest one; None if it is unknown."""
        if stack := self._off_cpu.get(key):
            return self._add_stack(stack, stack.frames, stack.end)
        return next((rows[key] for rows in reversed(self._rows) if key in rows), None)

    def add_counts(self, counts: dict[CountKey, SampleCount], *, last: bool = False) -> None:
        """Add the kernel program's counts to the rows of their stacks. `last`: count those whose stacks have not come as lost."""
        early, self._early_counts = self._early_counts, {}
        for key, count in [*early.items(), *counts.items()]:
            row = self._find_row(key)
            if row is None and self._plan.has_off_cpu_time and not last:
                before = self._early_counts.get(key, NO_SAMPLES)
                self._early_counts[key] = SampleCount(before.samples + count.samples, before.nanoseconds + count.nanoseconds)
            elif row is None:
                self.collected.lost[self._why_unwalked.get(key, NOT_RECEIVED)] += count.samples
            else:
                self._add_to_row(row, count)
        if counts:
            self._rows.append({})

    def _add_to_row(self, row: int, count: SampleCount) -> None:
        is_time = self.collected.unit is Unit.MICROSECONDS
        self.collected.stacks.add_samples(row, count.nanoseconds // MICROSECOND if is_time else count.samples)
