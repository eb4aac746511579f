"""When the kernel program gets the mappings of which process."""

from __future__ import annotations

import time
from collections import Counter

LONG, SHARE = 0.05, 10  # seconds of CPU time to publish a process, from which on that is done one tenth of the time


class Publications:
    """`due`: processes that the kernel program needs, and does not know as they are now."""

    def __init__(self, samples: int) -> None:
        """`samples` of a process that are walked here make it due."""
        self.due: set[int] = set()
        self._samples = samples
        self._walked: Counter[int] = Counter()  # samples of each process, since it was published last
        self._published: dict[int, int] = {}  # nanoseconds: when a process was last
        self._not_before: dict[int, float] = {}  # for processes with very many mappings

    def walked(self, pid: int, nanoseconds: int) -> bool:
        """Count a sample. Return True for the first one of a process that is not due and was never published."""
        if nanoseconds <= self._published.get(pid, 0):
            return False
        self._walked[pid] += 1
        if self._walked[pid] >= self._samples:
            self.due.add(pid)
            return False
        return pid not in self._published and self._walked[pid] == 1

    def take_due(self) -> list[int]:
        """Return those that need not wait. The stacks of the others are walked here meanwhile."""
        now = time.monotonic()
        taken = [pid for pid in self.due if self._not_before.get(pid, 0) <= now]
        self.due.difference_update(taken)
        return taken

    def publishing(self, pid: int) -> None:
        """Note that its mappings, as they are now, are about to be published."""
        self._published[pid] = time.monotonic_ns()
        self._walked.pop(pid, None)

    def took(self, pid: int, seconds: float) -> None:
        """Note the CPU time that it took."""
        if seconds > LONG:
            self._not_before[pid] = time.monotonic() + SHARE * seconds

    def forget(self, pid: int) -> None:
        self.due.discard(pid)
        for known in (self._walked, self._published, self._not_before):
            known.pop(pid, None)
