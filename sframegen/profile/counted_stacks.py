"""Stacks that the kernel program sends, and the counts that it sends apart -> rows of the tree."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from sframegen.profile.bpf.kernel_records import NOTHING, Counted
from sframegen.profile.following.cgroups import CgroupNames
from sframegen.profile.off_cpu_stacks import OffCpuStacks, drop_oldest
from sframegen.profile.packed_frames import is_off_cpu
from sframegen.profile.units import MICROSECOND, Unit

if TYPE_CHECKING:
    from sframegen.base.columns import Column
    from sframegen.profile.bpf.kernel_records import CountKey, NewStack, Unfinished, Unwalked
    from sframegen.profile.collected import Collected
    from sframegen.profile.following.follower import Follower
    from sframegen.profile.sampling_plan import ProfilePlan
    from sframegen.stack.walking.frames import End

NOT_RECEIVED = "the stack was not received"
NO_ROOM = "there was no room for more stacks, in memory or on the disk"
KEPT_ROWS = 4  # times that the maps of counts were read


class CountedStacks:
    """Fills `collected`."""

    def __init__(self, plan: ProfilePlan, follower: Follower, collected: Collected) -> None:
        self.collected = collected
        self._plan, self._follower = plan, follower
        self._off_cpu = OffCpuStacks()
        self._early: dict[CountKey, Counted] = {}  # of times off the CPU whose stacks are still being walked
        self._why_unwalked: dict[CountKey, str] = {}  # of times off the CPU whose stacks are not known
        self._cgroups = CgroupNames() if plan.cgroups else None
        # By hash, pid and tid, as the kernel program counts: what has come since it last changed to another map, and before that.
        self._rows: deque[dict[CountKey, int]] = deque([{}], KEPT_ROWS)

    def add(self, record: NewStack) -> None:
        """Keep a stack for the counts that will come."""
        row = self._row(record, record.frames, record.end)
        if is_off_cpu(record.frames):
            self._off_cpu.add(record)
        elif row is not None:
            self._rows[-1][record.hash, record.pid, record.tid] = row

    def add_walked(self, record: Unfinished, frames: Column, end: End, sample_time: int) -> None:
        """Count a sample that was walked here. `sample_time`: the nanoseconds that it stands for."""
        if record.hash:
            self._off_cpu.add_walked(record, frames, end, record.tid if self._plan.tells_threads else 0)
            return
        row = self._row(record, frames, end)
        if row is not None:
            self._count(row, Counted(1, sample_time))

    def lose(self, stack: Unwalked, reason: str) -> None:
        """Count a sample as lost; of a thread off the CPU once its time is counted, unless that stack has come until then."""
        tid = stack.tid if self._plan.tells_threads else 0
        self._why_unwalked.update(((number, stack.pid, tid), reason) for number in stack.hashes)
        if not stack.hashes:
            self.collected.lost[reason] += 1
        drop_oldest(self._why_unwalked)

    def _row(self, record: NewStack | Unfinished, frames: Column, end: End) -> int | None:
        """The row of a stack in the tree; None if there is no room for it."""
        if self._cgroups and record.pid not in self.collected.cgroups:
            self.collected.cgroups[record.pid] = self._cgroups.name(record.cgroup)
        try:
            return self.collected.stacks.row(self._task(record.pid, record.tid, record.comm), frames, end)
        except (MemoryError, OSError):
            self.collected.lost[NO_ROOM] += 1
            return None

    def _task(self, pid: int, tid: int, comm: str = "") -> int:
        """`comm`: the name of the thread."""
        processes, tasks = self._follower.processes, self.collected.stacks.tasks
        known = self._plan.tells_threads
        task = tasks.number(pid, tid if known else 0, processes.program(pid))
        tasks.name(task, processes.name_of(pid) or comm, (comm or self._follower.thread_name(pid, tid)) if known else "")
        return task

    def _row_of(self, key: CountKey) -> int | None:
        """The row of what the kernel program counted with that key; the newest, if its map was read and it came again."""
        stack = self._off_cpu.get(key)
        if stack:
            return self._row(stack, stack.frames, stack.end)
        return next((rows[key] for rows in reversed(self._rows) if key in rows), None)

    def count(self, counts: dict[CountKey, Counted], *, last: bool = False) -> None:
        """Count what the kernel program has counted. `last`: there are no more stacks to come, for which counts of times wait."""
        early, self._early = self._early, {}
        for key, counted in [*early.items(), *counts.items()]:
            row = self._row_of(key)
            if row is None and self._plan.off_cpu and not last:
                before = self._early.get(key, NOTHING)
                self._early[key] = Counted(before.samples + counted.samples, before.nanoseconds + counted.nanoseconds)
            elif row is None:
                self.collected.lost[self._why_unwalked.get(key, NOT_RECEIVED)] += counted.samples
            else:
                self._count(row, counted)
        if counts:
            self._rows.append({})

    def _count(self, row: int, counted: Counted) -> None:
        timed = self.collected.unit is Unit.MICROSECONDS
        number = counted.nanoseconds // MICROSECOND if timed else counted.samples
        self.collected.stacks.count(row, number, counted.nanoseconds)
