"""When the kernel program gets the mappings of which process."""

from __future__ import annotations

import time

LONG, SHARE = 0.05, 10  # seconds of CPU time to publish a process, from which on that is done one tenth of the time


class Publications:
    """`due`: processes that the kernel program needs, and does not know as they are now."""

    def __init__(self) -> None:
        self.due: set[int] = set()
        self._published: dict[int, int] = {}  # nanoseconds: when a process was last
        self._not_before: dict[int, float] = {}  # for processes with very many mappings

    def walked(self, pid: int, nanoseconds: int) -> None:
        """Note a sample that is to be walked here: its process is due, unless it was published since."""
        if nanoseconds > self._published.get(pid, 0):
            self.due.add(pid)

    def take_due(self) -> list[int]:
        """Return those that need not wait. The stacks of the others are walked here meanwhile."""
        now = time.monotonic()
        taken = [pid for pid in self.due if self._not_before.get(pid, 0) <= now]
        self.due.difference_update(taken)
        return taken

    def publishing(self, pid: int) -> None:
        """Note that its mappings, as they are now, are about to be published."""
        self._published[pid] = time.monotonic_ns()

    def took(self, pid: int, seconds: float) -> None:
        """Note the CPU time that it took."""
        if seconds > LONG:
            self._not_before[pid] = time.monotonic() + SHARE * seconds

    def forget(self, pid: int) -> None:
        self.due.discard(pid)
        for known in (self._published, self._not_before):
            known.pop(pid, None)
