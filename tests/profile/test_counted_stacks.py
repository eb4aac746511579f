"""Counts that the kernel program sends apart from stacks."""

from __future__ import annotations

from array import array

from sframegen.profile.bpf.kernel_records import NewStack, SampleCount, UnfinishedWalk
from sframegen.profile.collected import Collected
from sframegen.profile.counted_stacks import NOT_RECEIVED, RAN_AGAIN, CountedStacks
from sframegen.profile.events.event_records import CommRecord
from sframegen.profile.events.names import find_event
from sframegen.profile.following.files import TracedFiles
from sframegen.profile.following.follower import MappingResolver
from sframegen.profile.following.processes import Processes
from sframegen.profile.packed_frames import OffCpu
from sframegen.profile.sampling_plan import ProfilePlan
from sframegen.profile.stack_walks import NO_TABLE_IN_TIME
from sframegen.profile.walk.copied_stack import Start
from sframegen.stack.walking.frames import End


def stack(number: int) -> NewStack:
    return NewStack(number, 7, 0, End.OUTERMOST, "program", memoryview(array("Q", [number])))


def test_time_of_a_thread_that_ran_again_is_lost_with_that_reason() -> None:
    """It waited when sampling began, and its stack was to be read from here."""
    collected = Collected("cpu-clock", "bpf", 99)
    plan = ProfilePlan(None, find_event("cpu-clock"), 99, off_cpu=True)
    counted = CountedStacks(plan, Processes(MappingResolver(TracedFiles())), collected)
    where = Start([], 0, 1, frames=[OffCpu.SLEEPING.frame])
    record = UnfinishedWalk(1, 7, 9, "program", End.NO_PROCESS, where, 0, b"", 0, hash=5, asleep=True)
    counted.count_lost(record.unwalked, RAN_AGAIN)
    counted.add_counts(
        {(5, 7, 0): SampleCount(1, 1000), (record.waiting_hash, 7, 0): SampleCount(1, 10), (6, 7, 0): SampleCount(1, 1)}, last=True
    )
    assert collected.lost == {RAN_AGAIN: 2, NOT_RECEIVED: 1}


def test_time_off_the_cpu_is_lost_once() -> None:
    """Its stack is not walked, and then its time is counted; a sample on the CPU is counted nowhere else."""
    collected = Collected("cpu-clock", "bpf", 99)
    plan = ProfilePlan(None, find_event("cpu-clock"), 99, off_cpu=True)
    counted = CountedStacks(plan, Processes(MappingResolver(TracedFiles())), collected)
    where = Start([], 0, 1, frames=[OffCpu.SLEEPING.frame])
    record = UnfinishedWalk(1, 7, 9, "program", End.NO_TABLE, where, 0, b"", 0, hash=5)
    for one in (record, record._replace(hash=6), record._replace(hash=0)):
        counted.count_lost(one.unwalked, NO_TABLE_IN_TIME)
    counted.keep_stack(stack(1)._replace(hash=6, frames=array("Q", where.frames)))  # this one is known after all
    counted.add_counts({(5, 7, 0): SampleCount(3, 1000), (6, 7, 0): SampleCount(2, 1000)}, last=True)
    assert collected.lost == {NO_TABLE_IN_TIME: 4}
    assert collected.stacks.samples == 2


def test_a_sample_has_the_name_that_its_process_had_then() -> None:
    """When its stack is walked, the process may have executed another program, or be gone."""
    collected = Collected("cpu-clock", "copies", 99)
    processes = Processes(MappingResolver(TracedFiles()))
    counted = CountedStacks(ProfilePlan(), processes, collected)
    processes.set_scanned(7, [], "before", 1)
    record = UnfinishedWalk(1, 7, 7, "", End.NO_TABLE, Start([], 0, 1), 0, b"", 0, task=counted.name_task(7, 7))
    processes.apply(CommRecord(7, 7, "after", by_exec=True), 2)
    counted.count_walked(record, memoryview(array("Q", [5])), End.OUTERMOST)
    rows = collected.stacks.tree.rows
    assert [collected.stacks.tasks[task].process for task in rows.second[: rows.count]] == ["before"]


def test_frames_that_are_used_again_stay_in_the_kept_stack() -> None:
    """The stack of a thread off the CPU is found with both of its keys, as it was."""
    collected = Collected("cpu-clock", "bpf", 99)
    counted = CountedStacks(ProfilePlan(off_cpu=True), Processes(MappingResolver(TracedFiles())), collected)
    frames = array("Q", [OffCpu.LOCK.frame, 5, 6])
    where = Start([0] * 32, 0, 0, frames=(OffCpu.LOCK.frame,))
    record = UnfinishedWalk(1, 7, 8, "a", End.NO_TABLE, where, 0, b"", 0, hash=99)
    counted.count_walked(record, memoryview(frames), End.OUTERMOST)
    frames[1] = 1000
    counted.add_counts(
        {(99, 7, 0): SampleCount(1, 1), (record.waiting_hash, 7, 0): SampleCount(1, 1), (99, 7, 8): SampleCount(1, 1)}, last=True
    )
    expected = [(OffCpu.LOCK.frame, 5, 6), (OffCpu.WAITING.frame, 5, 6)]
    assert [stack.frames for stack in collected.stacks] == expected
    assert collected.lost == {NOT_RECEIVED: 1}
