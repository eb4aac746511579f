"""Counts that the kernel program sends apart from stacks."""

from __future__ import annotations

from array import array
from typing import cast

from sframegen.profile.bpf.kernel_records import Counted, NewStack, Unfinished
from sframegen.profile.collected import Collected
from sframegen.profile.counted_stacks import NOT_RECEIVED, CountedStacks
from sframegen.profile.events.names import event_named
from sframegen.profile.following.files import TracedFiles
from sframegen.profile.following.follower import Follower, MappingResolver
from sframegen.profile.following.processes import Processes
from sframegen.profile.off_cpu_stacks import RAN_AGAIN
from sframegen.profile.packed_frames import OffCpu
from sframegen.profile.sampling_plan import ProfilePlan
from sframegen.profile.waiting_stacks import NO_TABLE_IN_TIME
from sframegen.profile.walk.copied_stack import Start
from sframegen.stack.walking.frames import End


class NoRecords:
    """A follower of nothing."""

    def __init__(self) -> None:
        self.processes = Processes(MappingResolver(TracedFiles()))


def stack(number: int) -> NewStack:
    return NewStack(number, 7, 0, End.OUTERMOST, "program", memoryview(array("Q", [number])), 0)


def test_time_of_a_thread_that_ran_again_is_lost_with_that_reason() -> None:
    """It waited when sampling began, and its stack was to be read from here."""
    collected = Collected("cpu-clock", "bpf", 99)
    plan = ProfilePlan(None, event_named("cpu-clock"), 99, off_cpu=True)
    counted = CountedStacks(plan, cast("Follower", NoRecords()), collected)
    where = Start([], 0, 1, frames=[OffCpu.SLEEPING.frame])
    record = Unfinished(1, 7, 9, "program", End.NO_PROCESS, where, 0, b"", 0, hash=5, asleep=True)
    counted.lose(record.unwalked, RAN_AGAIN)
    counted.count({(5, 7, 0): Counted(1, 1000), (record.waiting_hash, 7, 0): Counted(1, 10), (6, 7, 0): Counted(1, 1)}, last=True)
    assert collected.lost == {RAN_AGAIN: 2, NOT_RECEIVED: 1}


def test_time_off_the_cpu_is_lost_once() -> None:
    """Its stack is not walked, and then its time is counted; a sample on the CPU is counted nowhere else."""
    collected = Collected("cpu-clock", "bpf", 99)
    plan = ProfilePlan(None, event_named("cpu-clock"), 99, off_cpu=True)
    counted = CountedStacks(plan, cast("Follower", NoRecords()), collected)
    where = Start([], 0, 1, frames=[OffCpu.SLEEPING.frame])
    record = Unfinished(1, 7, 9, "program", End.NO_TABLE, where, 0, b"", 0, hash=5)
    for one in (record, record._replace(hash=6), record._replace(hash=0)):
        counted.lose(one.unwalked, NO_TABLE_IN_TIME)
    counted.add(stack(1)._replace(hash=6, frames=array("Q", where.frames)))  # this one is known after all
    counted.count({(5, 7, 0): Counted(3, 1000), (6, 7, 0): Counted(2, 1000)}, last=True)
    assert collected.lost == {NO_TABLE_IN_TIME: 4}
    assert collected.stacks.samples == 2
