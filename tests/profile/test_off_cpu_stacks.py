"""Stacks of threads off the CPU are kept as they were, and found with both of their keys."""

from __future__ import annotations

from array import array

from sframegen.profile.bpf.kernel_records import Unfinished
from sframegen.profile.off_cpu_stacks import OffCpuStacks
from sframegen.profile.packed_frames import OffCpu
from sframegen.profile.walk.copied_stack import Start
from sframegen.stack.walking.frames import End


def test_frames_that_are_used_again_stay_in_the_kept_stack() -> None:
    frames = array("Q", [OffCpu.LOCK.frame, 5, 6])
    where = Start([0] * 32, 0, 0, True, (OffCpu.LOCK.frame,), False)
    record = Unfinished(1, 7, 8, "a", End.NO_TABLE, where, 0, b"", 0, hash=99)
    stacks = OffCpuStacks()
    stacks.add_walked(record, memoryview(frames), End.OUTERMOST, 0)
    frames[1] = 1000
    kept, waiting = stacks.get((99, 7, 0)), stacks.get((record.waiting_hash, 7, 0))
    assert kept
    assert waiting
    assert list(kept.frames) == [OffCpu.LOCK.frame, 5, 6]
    assert list(waiting.frames) == [OffCpu.WAITING.frame, 5, 6]
    assert stacks.get((99, 7, 8)) is None
