"""Counts stacks in rows of the tree: the kernel program sends stacks, and separately their counts.

Those of threads off the CPU are kept until they run again: that may be long after the kernel program has sent them.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import TYPE_CHECKING, TypeVar

from sframegen.profile.bpf.kernel_records import NOTHING, CountKey, NewStack, SampleCount, UnfinishedWalk, UnwalkedStack
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
MOST = 1 << 18  # stacks; the kernel program sends those that are used again


def drop_oldest(known: dict[CountKey, T]) -> None:
    """Drop the oldest entries beyond MOST."""
    while len(known) > MOST:
        del known[next(iter(known))]


def with_stack(record: UnfinishedWalk, walker: KernelWalker) -> UnfinishedWalk | None:
    """Return the record with the stack of a thread that waited when profiling began; None if it has run since."""
    memory = read_memory(record.pid, record.stack_start, MAX_COPY)
    return record._replace(stack=memory, asleep=False) if memory and walker.is_asleep(record.tid, record.hash) else None


NOT_RECEIVED = "the stack was not received"
NO_ROOM = "there was no room for more stacks, in memory or on the disk"
KEPT_ROWS = 4  # readings of the kernel program's counts, for which rows are kept


class CountedStacks:
    """Counts samples in `collected`, from the kernel program's stacks and counts, and from walks here."""

    def __init__(self, plan: ProfilePlan, processes: Processes, collected: Collected) -> None:
        self.collected = collected
        self._plan, self._processes = plan, processes
        self._off_cpu: dict[CountKey, NewStack] = {}  # the last that came is at the end; each has its wait-for-CPU twin
        self._early: dict[CountKey, SampleCount] = {}  # times off the CPU whose stacks are still being walked
        self._why_unwalked: dict[CountKey, str] = {}  # of times off the CPU whose stacks are not known: the reason
        # By hash, pid and tid, as the kernel program counts: what has come since it last changed to another map, and before that.
        self._rows: deque[dict[CountKey, int]] = deque([{}], KEPT_ROWS)

    def add(self, record: NewStack) -> None:
        """Keep a stack for the counts that will come."""
        row = self._row(record, record.frames, record.end)
        if is_off_cpu(record.frames):
            self._keep_off_cpu(record)
        elif row is not None:
            self._rows[-1][record.hash, record.pid, record.tid] = row

    def add_walked(self, record: UnfinishedWalk, frames: Column, end: End) -> None:
        """Count a sample that was walked here."""
        if record.hash:
            kept = array("Q", frames)  # the walker uses its own again
            tid = record.tid if self._plan.tells_threads else 0
            stack = NewStack(record.hash, record.pid, tid, end, record.comm, kept)
            self._keep_off_cpu(stack)
            self._keep_off_cpu(stack.waiting())
            return
        row = self._row(record, frames, end)
        if row is not None:
            self._add_to_row(row, SampleCount(1, self._plan.sample_time))

    def _keep_off_cpu(self, stack: NewStack) -> None:
        key = (stack.hash, stack.pid, stack.tid)
        self._off_cpu.pop(key, None)  # it goes to the end
        self._off_cpu[key] = stack
        drop_oldest(self._off_cpu)

    def lose(self, stack: UnwalkedStack, reason: str) -> None:
        """Count a sample as lost; of a thread off the CPU once its time is counted, unless that stack has come until then."""
        tid = stack.tid if self._plan.tells_threads else 0
        self._why_unwalked.update(((number, stack.pid, tid), reason) for number in stack.hashes)
        if not stack.hashes:
            self.collected.lost[reason] += 1
        drop_oldest(self._why_unwalked)

    def _row(self, record: NewStack | UnfinishedWalk, frames: Column, end: End) -> int | None:
        """Return the row of a stack in the tree; None if there is no room for it."""
        try:
            task = record.task if isinstance(record, UnfinishedWalk) else None
            if task is None:
                task = self.task(record.pid, record.tid, record.comm)
            return self.collected.stacks.row(task, frames, end)
        except (MemoryError, OSError):
            self.collected.lost[NO_ROOM] += 1
            return None

    def task(self, pid: int, tid: int, comm: str = "") -> int:
        """Name a task and return its number. `comm`: the name of the thread."""
        processes, tasks = self._processes, self.collected.stacks.tasks
        known = self._plan.tells_threads
        task = tasks.number(pid, tid if known else 0, processes.program(pid))
        tasks.name(task, processes.name_of(pid) or comm, (comm or processes.thread_name(pid, tid)) if known else "")
        return task

    def _row_of(self, key: CountKey) -> int | None:
        """Return the row of the stack that the kernel program counted with this key, the newest if it was sent again; else None."""
        stack = self._off_cpu.get(key)
        if stack:
            return self._row(stack, stack.frames, stack.end)
        return next((rows[key] for rows in reversed(self._rows) if key in rows), None)

    def count(self, counts: dict[CountKey, SampleCount], *, last: bool = False) -> None:
        """Add counts of the kernel program. `last`: no more stacks will come, so counts of times do not wait for theirs."""
        early, self._early = self._early, {}
        for key, counted in [*early.items(), *counts.items()]:
            row = self._row_of(key)
            if row is None and self._plan.has_times and not last:
                before = self._early.get(key, NOTHING)
                self._early[key] = SampleCount(before.samples + counted.samples, before.nanoseconds + counted.nanoseconds)
            elif row is None:
                self.collected.lost[self._why_unwalked.get(key, NOT_RECEIVED)] += counted.samples
            else:
                self._add_to_row(row, counted)
        if counts:
            self._rows.append({})

    def _add_to_row(self, row: int, counted: SampleCount) -> None:
        timed = self.collected.unit is Unit.MICROSECONDS
        number = counted.nanoseconds // MICROSECOND if timed else counted.samples
        self.collected.stacks.count(row, number)
