"""Settings of the kernel program for a plan: constants, set before it is loaded, and the size of the ring buffer."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

from sframegen.profile.bpf.kernel_needs import switch_has_state
from sframegen.stack.abi.machines import HOSTS, conventions_of

if TYPE_CHECKING:
    from sframegen.profile.sampling_plan import ProfilePlan

MIB = 1 << 20
LEAST_RING, LARGEST_RING = MIB, 64 * MIB
BYTES_OF_A_COPY, SECONDS_IN_RING = 16 << 10, 2  # of samples in new processes: we may wait that long for a processor
EVENTS_A_SECOND = 250  # on each CPU, where they are not sampled by time
MEMOS = 1 << 12  # stacks of threads that were off the CPU last: a power of two
COMM_BYTES = 16
_SETTINGS = struct.Struct("=QQII5B3x16s")


def ring_bytes(hertz: int, cpus: int) -> int:
    """Return the size of the ring buffer, a power of two."""
    wanted = (hertz or EVENTS_A_SECOND) * cpus * BYTES_OF_A_COPY * SECONDS_IN_RING
    return max(LEAST_RING, min(LARGEST_RING, 1 << (wanted - 1).bit_length()))


def packed_settings(plan: ProfilePlan, cpus: int) -> bytes:
    """Return struct settings of walker.h."""
    return _SETTINGS.pack(
        conventions_of(HOSTS[os.uname().machine]).ra_mask,
        plan.sample_time,
        cpus,
        MEMOS if plan.has_times else 1,
        plan.targets is None,
        plan.kernel,
        plan.tells_threads,
        plan.comm is not None,
        switch_has_state(),
        (plan.comm or "").encode(errors="surrogateescape")[: COMM_BYTES - 1],
    )
