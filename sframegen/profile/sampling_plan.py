"""The options of a profile (processes, event, frequency, kinds of stacks), and the search for the processes that it names."""

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
    """The label that becomes the outermost level of stacks in all output formats."""

    COMM = "comm"
    PID = "pid"
    TID = "tid"
    OBJECT = "object"


class ProfilePlan(NamedTuple):
    """The options of `profile`. `targets`: pids, sampled together with their descendants; None: every process.

    `tids`: only these threads; empty: all. `comm`: only threads with this name. `after_exec`: sample from the exec of the targets
    on. `stores`: of detached sections.
    """

    targets: frozenset[int] | None = None
    event: Event = CPU_CLOCK
    frequency: int = 99
    tids: frozenset[int] = frozenset()
    by: str = Grouping.COMM
    kernel: bool = False  # also kernel frames
    off_cpu: bool = False  # count the time that threads do not run, instead of the event
    wall: bool = False  # count off-CPU time and the event
    comm: str | None = None
    after_exec: bool = False
    stores: Stores | None = None

    @property
    def separates_threads(self) -> bool:
        return self.by == Grouping.TID or bool(self.tids)

    @property
    def on_cpu(self) -> bool:
        return not self.off_cpu

    @property
    def has_off_cpu_time(self) -> bool:
        return self.off_cpu or self.wall

    @property
    def unit(self) -> Unit:
        return Unit.MICROSECONDS if self.has_off_cpu_time else Unit.SAMPLES

    @property
    def event_label(self) -> str:
        """Return the name of the event or time that is sampled, for users."""
        if self.off_cpu:
            return "time off the CPU"
        return f"time on ({self.event.name}) and off the CPU" if self.wall else self.event.name

    @property
    def hertz(self) -> int:
        """Return the samples per second; 0 if the event is not sampled, or if every `frequency`th event is a sample."""
        return self.event.hertz(self.frequency) * self.on_cpu

    @property
    def sample_time(self) -> int:
        """Return the nanoseconds that one sample of a clock stands for; 0 for other events."""
        return SECOND // self.hertz if self.hertz and self.event.name in CLOCKS else 0

    @property
    def kernel_only_feature(self) -> str:
        """Return the option, in words, that only the kernel program supports; empty if copies of stacks suffice."""
        if self.has_off_cpu_time:
            return "time off the CPU"
        return "choosing a name" if self.comm is not None else ""

    def has_running_targets(self) -> bool:
        """Return False if all targets have ended."""
        return self.targets is None or any(map(is_process, self.targets))


def follow_descendants(followed: set[int], follow: Callable[[int], object]) -> None:
    """Call `follow` for all existing descendants of the processes `followed`, and add them to that set.

    Once followed, a process's new children are followed by other means, so the search ends when it finds no new process.
    """
    while children := {pid for pid, parent in _read_parents().items() if parent in followed} - followed:
        for pid in sorted(children):
            follow(pid)
        followed |= children


def _read_parents() -> dict[int, int]:
    """Return the parent pid of each process, by pid."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError, IndexError, ValueError):  # it has ended
                fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()  # after the name: the state, the parent
                parents[int(folder.name)] = int(fields[1])
    return parents


def is_process(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
