"""Finds events by the names that users of perf know, and lists the events that this machine has."""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

from sframegen.profile.events.attributes import (
    TYPE_CACHE,
    TYPE_HARDWARE,
    TYPE_SOFTWARE,
    EventAttributes,
    EventError,
    EventFlag,
    open_event,
)


class Event(NamedTuple):
    """An event to sample. `by_frequency`: sampled a number of times per second; otherwise every Nth event is a sample."""

    name: str
    type: int
    config: int
    by_frequency: bool
    aliases: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    def hertz(self, number: int) -> int:
        """Return the samples per second; 0 if every `number`th event is a sample."""
        return number * self.by_frequency

    def notes(self, number: int) -> list[str]:
        """Return a line for users if samples are not taken by time."""
        return [] if self.by_frequency else [f"sampled: 1 in {number:,} {self.name}"]


def _cache_misses(cache: int, operation: int) -> int:
    """Return the `config` of a cache's misses. `cache`: 0 is L1 data; `operation`: 0 loads, 1 stores."""
    return cache | operation << 8 | 1 << 16  # the last number is PERF_COUNT_HW_CACHE_RESULT_MISS


CPU_CLOCK = Event("cpu-clock", TYPE_SOFTWARE, 0, by_frequency=True)  # the default
TASK_CLOCK = Event("task-clock", TYPE_SOFTWARE, 1, by_frequency=True)
EVENTS = (
    CPU_CLOCK,
    TASK_CLOCK,
    Event("page-faults", TYPE_SOFTWARE, 2, by_frequency=False, aliases=("faults",)),
    Event("minor-faults", TYPE_SOFTWARE, 5, by_frequency=False),
    Event("major-faults", TYPE_SOFTWARE, 6, by_frequency=False),
    Event("context-switches", TYPE_SOFTWARE, 3, by_frequency=False, aliases=("cs",)),
    Event("cpu-migrations", TYPE_SOFTWARE, 4, by_frequency=False, aliases=("migrations",)),
    Event("alignment-faults", TYPE_SOFTWARE, 7, by_frequency=False),
    Event("emulation-faults", TYPE_SOFTWARE, 8, by_frequency=False),
    Event("cycles", TYPE_HARDWARE, 0, by_frequency=True, aliases=("cpu-cycles",)),
    Event("instructions", TYPE_HARDWARE, 1, by_frequency=True),
    Event("cache-references", TYPE_HARDWARE, 2, by_frequency=True),
    Event("cache-misses", TYPE_HARDWARE, 3, by_frequency=True),
    Event("branches", TYPE_HARDWARE, 4, by_frequency=True, aliases=("branch-instructions",)),
    Event("branch-misses", TYPE_HARDWARE, 5, by_frequency=True),
    Event("bus-cycles", TYPE_HARDWARE, 6, by_frequency=True),
    Event("stalled-cycles-frontend", TYPE_HARDWARE, 7, by_frequency=True, aliases=("idle-cycles-frontend",)),
    Event("stalled-cycles-backend", TYPE_HARDWARE, 8, by_frequency=True, aliases=("idle-cycles-backend",)),
    Event("ref-cycles", TYPE_HARDWARE, 9, by_frequency=True),
    Event("L1-dcache-load-misses", TYPE_CACHE, _cache_misses(0, 0), by_frequency=True),
    Event("L1-icache-load-misses", TYPE_CACHE, _cache_misses(1, 0), by_frequency=True),
    Event("LLC-load-misses", TYPE_CACHE, _cache_misses(2, 0), by_frequency=True),
    Event("LLC-store-misses", TYPE_CACHE, _cache_misses(2, 1), by_frequency=True),
    Event("dTLB-load-misses", TYPE_CACHE, _cache_misses(3, 0), by_frequency=True),
    Event("iTLB-load-misses", TYPE_CACHE, _cache_misses(4, 0), by_frequency=True),
)
CLOCKS = (CPU_CLOCK.name, TASK_CLOCK.name)  # events whose samples each stand for a period of time
BY_NAME = {name: event for event in EVENTS for name in event.names}
ABSENT_ERRORS = {errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV, errno.EINVAL}


def find_event(name: str) -> Event:
    """Return the event with a name. Raises EventError, which lists this machine's events, if it is unknown or missing."""
    event = BY_NAME.get(name)
    if event is not None and _exists(event):
        return event
    names = ", ".join(event.name for event in list_available())
    problem = f"{name}: unknown event" if event is None else f"this machine has no {name} events"
    raise EventError(f"{problem}; choose one of {names}" if names else problem)


def list_available() -> list[Event]:
    """Return the events that this machine has, even if we may not use them; none if the kernel has no perf events."""
    return [event for event in EVENTS if _exists(event)]


def _exists(event: Event) -> bool:
    """Return True unless the kernel answers that it has no such event. It may still refuse the event to us."""
    flags = EventFlag.DISABLED | EventFlag.EXCLUDE_KERNEL | EventFlag.EXCLUDE_HYPERVISOR
    try:
        os.close(open_event(EventAttributes(event.type, config=event.config, flags=flags), 0, -1))
    except EventError as error:
        return error.number not in (*ABSENT_ERRORS, errno.ENOSYS)
    return True
