"""Stacks of threads that are off the CPU, kept until they run again: that may be long after the kernel program has sent them."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, TypeVar

from sframegen.profile.bpf.kernel_records import NewStack
from sframegen.profile.following.follower import read_memory
from sframegen.profile.limits import MAX_COPY

if TYPE_CHECKING:
    from sframegen.base.columns import Column
    from sframegen.profile.bpf.kernel_records import CountKey, Unfinished
    from sframegen.profile.bpf.kernel_walker import KernelWalker
    from sframegen.stack.walking.frames import End

T = TypeVar("T")
RAN_AGAIN = "the thread waited when sampling began, and ran again before its stack was read"
MOST = 1 << 18  # stacks; the kernel program sends those that are used again


class OffCpuStacks:
    """Off-CPU stacks by (hash, pid, tid), each with its wait-for-CPU twin."""

    def __init__(self) -> None:
        self._stacks: dict[CountKey, NewStack] = {}

    def add(self, stack: NewStack) -> None:
        key = (stack.hash, stack.pid, stack.tid)
        self._stacks.pop(key, None)  # it goes to the end
        self._stacks[key] = stack
        drop_oldest(self._stacks)

    def add_walked(self, record: Unfinished, frames: Column, end: End, tid: int) -> None:
        """One whose walk was finished here. `tid`: 0 if threads are not told apart."""
        kept = array("Q", frames)  # the walker uses its own again
        stack = NewStack(record.hash, record.pid, tid, end, record.comm, kept, record.cgroup)
        self.add(stack)
        self.add(stack.waiting())

    def get(self, key: CountKey) -> NewStack | None:
        return self._stacks.get(key)


def drop_oldest(known: dict[CountKey, T]) -> None:
    """Keep as many as are kept of stacks."""
    while len(known) > MOST:
        del known[next(iter(known))]


def with_stack(record: Unfinished, walker: KernelWalker) -> Unfinished | None:
    """Read the stack of a thread that waited when profiling began; None if it runs meanwhile."""
    memory = read_memory(record.pid, record.stack_start, MAX_COPY)
    return record._replace(stack=memory, asleep=False) if memory and walker.is_asleep(record.tid, record.hash) else None
