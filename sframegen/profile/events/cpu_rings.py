"""The CPUs that run now; the ring buffers of events on all of them -> their records in the order of time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from sframegen.profile.events.attributes import EventError
from sframegen.profile.events.ring import RingBuffer
from sframegen.profile.events.timed_records import split_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.profile.events.timed_records import TimedRecord

ONLINE = Path("/sys/devices/system/cpu/online")


class CpuRings:
    """For each CPU the descriptor of an event, which is closed here, and its buffer.

    Samples and the suffixes of other records have TID, TIME and CPU; the clock is CLOCK_MONOTONIC.
    """

    def __init__(self) -> None:
        self.by_cpu: dict[int, tuple[int, RingBuffer]] = {}
        self.lost = 0  # records that the kernel could not write
        self._pending: list[TimedRecord] = []
        self._number = 0

    @property
    def filenos(self) -> list[int]:
        """Return descriptors that are readable when there are records."""
        return [descriptor for descriptor, _ in self.by_cpu.values()]

    def add(self, cpu: int, descriptor: int, pages: int) -> None:
        """Closes the descriptor if the memory is not allowed. Raises EventError."""
        try:
            self.by_cpu[cpu] = descriptor, RingBuffer(descriptor, pages)
        except EventError:
            os.close(descriptor)
            raise

    def collect(self) -> None:
        """Move all records out of the buffers. Raises FormatError if one has no time."""
        for _, ring in self.by_cpu.values():
            before = len(self._pending)
            self.lost += split_records(ring.taken(), self._number, self._pending)
            self._number += len(self._pending) - before

    def until(self, now: int) -> Iterator[TimedRecord]:
        """Take out what came up to that time, after `collect`: of later ones, another CPU may have an earlier one unseen."""
        self._pending.sort()
        count = 0
        try:
            for record in self._pending:
                if record[0] > now:
                    break
                count += 1
                yield record
        finally:
            del self._pending[:count]

    def close(self, cpu: int) -> None:
        descriptor, ring = self.by_cpu.pop(cpu)
        ring.close()
        os.close(descriptor)

    def close_all(self) -> None:
        for cpu in list(self.by_cpu):
            self.close(cpu)


def online_cpus() -> set[int]:
    return cpus_in(ONLINE.read_text())


def cpus_in(text: str) -> set[int]:
    """Return the numbers in a list like `0-3,8`."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus
