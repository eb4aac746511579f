"""The plan of a profile: processes, event, frequency and kinds of stacks to sample."""

from __future__ import annotations

from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sframegen.profile.collected import Unit
from sframegen.profile.events.names import CLOCKS, CPU_CLOCK, Event

if TYPE_CHECKING:
    from collections.abc import Callable

    from sframegen.detached.stores import Stores

SECOND = 1_000_000_000  # nanoseconds


class Grouping(StrEnum):
    """The outermost level of stacks in all formats."""

    COMM = "comm"
    PID = "pid"
    TID = "tid"
    OBJECT = "object"


class ProfilePlan(NamedTuple):
    """The options of `profile`. `targets`: pids, with their descendants; None: every process.

    `tids`: only these threads; none: all. `comm`: only threads with this name. `after_exec`: the targets are to execute the program
    that is sampled. `stores`: of detached sections.
    """

    targets: frozenset[int] | None = None
    event: Event = CPU_CLOCK
    frequency: int = 99
    tids: frozenset[int] = frozenset()
    by: str = Grouping.COMM
    kernel: bool = False  # kernel frames, too
    off_cpu: bool = False  # the time that threads do not run, instead of the event
    wall: bool = False  # off-CPU time and the event
    comm: str | None = None
    after_exec: bool = False
    stores: Stores | None = None

    @property
    def tells_threads(self) -> bool:
        return self.by == Grouping.TID or bool(self.tids)

    @property
    def on_cpu(self) -> bool:
        return not self.off_cpu

    @property
    def has_times(self) -> bool:
        """Return True if the time off the CPU is counted."""
        return self.off_cpu or self.wall

    @property
    def unit(self) -> Unit:
        return Unit.MICROSECONDS if self.has_times else Unit.SAMPLES

    @property
    def event_label(self) -> str:
        """Return the name of the event or time that is sampled, for users."""
        if self.off_cpu:
            return "time off the CPU"
        return f"time on ({self.event.name}) and off the CPU" if self.wall else self.event.name

    @property
    def hertz(self) -> int:
        """Return the samples of the event each second; 0: none, or once in `frequency` events."""
        return self.event.hertz(self.frequency) * self.on_cpu

    @property
    def sample_time(self) -> int:
        """Return the nanoseconds that a sample of a clock stands for; 0 for other events."""
        return SECOND // self.hertz if self.hertz and self.event.name in CLOCKS else 0

    @property
    def needs_kernel_program(self) -> str:
        """Return the part of the plan that copies of stacks cannot do; empty if they can do all of it."""
        if self.has_times:
            return "time off the CPU"
        return "choosing a name" if self.comm is not None else ""

    def has_targets(self) -> bool:
        """Return False if all processes that were to be sampled have ended."""
        return self.targets is None or any(map(is_process, self.targets))


def with_descendants(known: set[int], want: Callable[[int], object]) -> None:
    """Call `want` for all descendants of the processes that exist already, and add them to `known`.

    The caller follows children of wanted processes itself. Processes are listed again until there are no new descendants.
    """
    while found := {pid for pid, parent in _parents().items() if parent in known} - known:
        for pid in sorted(found):
            want(pid)
        known |= found


def _parents() -> dict[int, int]:
    """Return the parent of each process."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError, IndexError, ValueError):  # it has ended
                found[int(folder.name)] = int((folder / "stat").read_bytes().rpartition(b")")[2].split()[1])
    return found


def is_process(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
