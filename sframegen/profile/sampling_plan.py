"""What is to be sampled."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sframegen.detached.stores import Stores
    from sframegen.profile.events.names import Event


class ProfilePlan(NamedTuple):
    """What is sampled. `targets`: pids, with their children; None: every process. `tids`: only these threads; none: all."""

    targets: frozenset[int] | None
    event: Event
    frequency: int
    tids: frozenset[int] = frozenset()
    threads: bool = False  # tell threads apart
    kernel: bool = False  # kernel frames, too
    moments: bool = False  # keep the time of each sample
    idle: bool = False  # count idle CPUs
    max_memory: int = 1 << 30  # bytes of the tables in the kernel
    buffer_size: int = 0  # bytes of the ring buffer; 0: by the frequency
    stores: Stores | None = None  # of detached sections

    @property
    def tells_threads(self) -> bool:
        return self.threads or bool(self.tids)

    def has_targets(self) -> bool:
        """Return False if all processes that were to be sampled have ended."""
        return self.targets is None or any(map(is_process, self.targets))


def is_process(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
