"""Copied stacks that wait for the table of a file."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from sframegen.profile.limits import MAX_WAITING

if TYPE_CHECKING:
    from sframegen.profile.bpf.kernel_records import Unfinished
    from sframegen.profile.following.processes import ProcessSpans


class Waiting(NamedTuple):
    """`spans`: of its process at that time; `number`: of the file whose table it waits for."""

    record: Unfinished
    spans: ProcessSpans
    number: int


class WaitingStacks:
    """Those of the kernel program. `bytes`: of all."""

    def __init__(self) -> None:
        self.stacks: deque[Waiting] = deque()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self.stacks)

    def add(self, one: Waiting) -> int:
        """Return how many are dropped, because there are too many."""
        self.stacks.append(one)
        self.bytes += len(one.record.stack)
        dropped = 0
        while self.bytes > MAX_WAITING:
            self.bytes -= len(self.stacks.popleft().record.stack)
            dropped += 1
        return dropped

    def take(self, numbers: set[int]) -> list[Waiting]:
        """Return those that wait for these files, and forget them."""
        taken = [one for one in self.stacks if one.number in numbers]
        if taken:
            self.stacks = deque(one for one in self.stacks if one.number not in numbers)
            self.bytes -= sum(len(one.record.stack) for one in taken)
        return taken

    def files(self) -> set[int]:
        """Return the numbers of all files that they may need."""
        return {span.file for one in self.stacks for span in one.spans}
