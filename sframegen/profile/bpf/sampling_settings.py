"""What the kernel program is to sample, and how large its ring buffer has to be for that."""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

from sframegen.profile.bpf.kernel_needs import switch_has_state
from sframegen.profile.events.attributes import TYPE_SOFTWARE
from sframegen.stack.abi.machines import HOSTS, conventions_of

MIB = 1 << 20
LEAST_RING, LARGEST_RING = MIB, 64 * MIB
BYTES_OF_A_COPY, SECONDS_IN_RING = 16 << 10, 2  # of samples in processes that are new: so long we may have to wait for a processor
EVENTS_A_SECOND = 250  # on each CPU, where they are not sampled by time
EVENT_PROGRAM = "on_event"
SWITCH_PROGRAMS = ("on_waking", "on_switch")
ASLEEP_PROGRAM = "on_begin"  # once, for threads that wait already
SECOND = 1_000_000_000
MEMOS = 1 << 12  # stacks of threads that were off the CPU last: a power of two
COMM_BYTES = 16
_SETTINGS = struct.Struct("=QQQIIII16s6B2x")
CLOCKS = {(TYPE_SOFTWARE, 0), (TYPE_SOFTWARE, 1)}  # cpu-clock, task-clock


class Only(NamedTuple):
    """Which tasks are sampled, of all that could be."""

    user: int | None = None
    comm: str | None = None  # the name of the thread
    cgroups: tuple[str, ...] = ()  # their folders; and those below them


EVERYBODY = Only()


class Sampling(NamedTuple):
    """What is sampled: a perf event (type, config), `frequency` times a second, or, if that is 0, once in `period` events."""

    event: tuple[int, int] = (TYPE_SOFTWARE, 0)  # 0: cpu-clock
    frequency: int = 99
    period: int = 0
    kernel_frames: bool = False
    threads: bool = False  # counts of threads, not of processes
    buffer_size: int = 0  # bytes of the ring buffer; 0: by the frequency
    after_exec: bool = False  # samples of the targets themselves only after they have executed another program
    on_cpu: bool = True  # False: the event is not sampled
    off_cpu: bool = False  # the time that threads do not run
    min_block: int = 0  # nanoseconds: shorter times do not count
    only: Only = EVERYBODY

    @property
    def sample_time(self) -> int:
        """Return the nanoseconds that a sample of a clock stands for; 0 for other events."""
        return SECOND // self.frequency if self.event in CLOCKS and self.frequency else 0

    @property
    def programs(self) -> set[str]:
        """Return the kernel programs that take samples."""
        programs = {EVENT_PROGRAM} if self.on_cpu else set()
        return programs | ({*SWITCH_PROGRAMS, ASLEEP_PROGRAM} if self.off_cpu else set())


def ring_bytes(sampling: Sampling, cpus: int, memory_limit: int) -> int:
    """The size of the ring buffer, a power of two, at most an eighth of the memory for tables."""
    wanted = (sampling.frequency or EVENTS_A_SECOND) * cpus * BYTES_OF_A_COPY * SECONDS_IN_RING
    wanted = 1 << (wanted - 1).bit_length()
    allowed = sampling.buffer_size or min(wanted, LARGEST_RING, max(memory_limit // 8, LEAST_RING))
    return max(LEAST_RING, 1 << (allowed.bit_length() - 1))


def packed_settings(sampling: Sampling, cpus: int, *, every_process: bool) -> bytes:
    """Return it as walker.h has it, in struct settings."""
    only = sampling.only
    return _SETTINGS.pack(
        conventions_of(HOSTS[os.uname().machine]).ra_mask,
        sampling.sample_time,
        sampling.min_block,
        len(only.cgroups),
        only.user or 0,
        cpus,
        MEMOS if sampling.off_cpu else 1,
        (only.comm or "").encode(errors="surrogateescape")[: COMM_BYTES - 1],
        every_process,
        sampling.kernel_frames,
        sampling.threads,
        only.user is not None,
        only.comm is not None,
        switch_has_state(),
    )
