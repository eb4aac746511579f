"""What is to be sampled."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sframegen.profile.units import Unit

if TYPE_CHECKING:
    from collections.abc import Callable

    from sframegen.detached.stores import Stores
    from sframegen.profile.bpf.sampling_settings import Only, Sampling
    from sframegen.profile.events.names import Event


class ProfilePlan(NamedTuple):
    """What is sampled. `targets`: pids, with their descendants; None: every process. `tids`: only these threads; none: all."""

    targets: frozenset[int] | None
    event: Event
    frequency: int
    tids: frozenset[int] = frozenset()
    threads: bool = False  # tell threads apart
    kernel: bool = False  # kernel frames, too
    idle: bool = False  # count idle CPUs
    after_exec: bool = False  # the targets are to execute the program that is sampled
    max_memory: int = 1 << 30  # bytes of the tables in the kernel
    buffer_size: int = 0  # bytes of the ring buffer; 0: by the frequency
    stores: Stores | None = None  # of detached sections
    on_cpu: bool = True  # sample the event
    off_cpu: bool = False  # count the time that threads do not run
    min_block: int = 0  # nanoseconds: shorter times off the CPU do not count
    cgroups: bool = False  # keep the names of the processes' control groups
    only: Only | None = None  # these tasks of all that could be sampled; None: all

    @property
    def tells_threads(self) -> bool:
        return self.threads or bool(self.tids)

    @property
    def unit(self) -> Unit:
        return Unit.MICROSECONDS if self.off_cpu else Unit.SAMPLES

    @property
    def shown_event(self) -> str:
        """Return what is sampled, for users."""
        if not self.off_cpu:
            return self.event.name
        return f"time on ({self.event.name}) and off the CPU" if self.on_cpu else "time off the CPU"

    @property
    def hertz(self) -> int:
        """Return the samples of the event each second; 0: none, or once in `frequency` events."""
        return self.event.hertz(self.frequency) * self.on_cpu

    def sampling(self) -> Sampling:
        """Return what the kernel program is to sample."""
        from sframegen.profile.bpf.sampling_settings import EVERYBODY, Sampling  # noqa: PLC0415 - other backends do without

        return Sampling(
            (self.event.type, self.event.config),
            self.hertz,
            self.frequency,
            kernel_frames=self.kernel,
            threads=self.tells_threads,
            buffer_size=self.buffer_size,
            on_cpu=self.on_cpu,
            off_cpu=self.off_cpu,
            min_block=self.min_block,
            only=self.only or EVERYBODY,
            after_exec=self.after_exec,
        )

    @property
    def needs_kernel_program(self) -> str:
        """Return what copies of stacks cannot do; empty if they can do all of it."""
        if self.off_cpu:
            return "time off the CPU"
        return "choosing a user, a name or a control group" if self.only else ""

    def has_targets(self) -> bool:
        """Return False if all processes that were to be sampled have ended."""
        return self.targets is None or any(map(is_process, self.targets))


def with_descendants(known: set[int], want: Callable[[int], object]) -> None:
    """Call `want` for all descendants of the processes that exist already, and add them to `known`.

    Children that a wanted process makes are somebody else's to follow. So the table of processes is read again until it has no
    others.
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
