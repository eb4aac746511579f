"""What the kernel program needs from the kernel, and since which release there is."""

from __future__ import annotations

import os
import re
from pathlib import Path

from sframegen.profile.bpf.libbpf import LoadError

NEEDS = {
    "arrays of BPF that user space maps": (5, 5),
    "reading whole hash maps in batches": (5, 6),
    "ring buffers of BPF": (5, 8),
    "inner maps of different sizes": (5, 10),
    "the current task as a typed pointer": (5, 11),
    "atomic operations of BPF that return a value": (5, 12),
    "pointers as arguments of global functions": (5, 12),
    "the user registers of a task": (5, 15),
}
MINIMUM = max(NEEDS.values())
# With CONFIG_HARDENED_USERCOPY, reading user memory in these may wait for a lock that the interrupted code holds: the machine then
# stands still. They ended before the correction, which 6.1 and 6.3 got in mid-2023 and all later releases have.
DEADLOCKING = ((5, 19), (6, 0))
BTF = Path("/sys/kernel/btf/vmlinux")


def check_kernel(release: str | None = None) -> None:
    """Raise LoadError if the kernel is too old for the program, or has no type information."""
    release = os.uname().release if release is None else release
    numbers = re.match(r"(\d+)\.(\d+)", release)
    if numbers and (int(numbers[1]), int(numbers[2])) < MINIMUM:
        version = int(numbers[1]), int(numbers[2])
        missing = next(what for what, since in NEEDS.items() if version < since)
        least = ".".join(map(str, MINIMUM))
        raise LoadError(f"the kernel is {release}, and the kernel program needs {least} or newer: this one lacks {missing}")
    if numbers and (int(numbers[1]), int(numbers[2])) in DEADLOCKING:
        raise LoadError(f"the kernel is {release}: releases 5.19 and 6.0 may lock up when BPF reads user memory in interrupts")
    if not BTF.exists():
        raise LoadError(f"the kernel has no {BTF}: it was built without CONFIG_DEBUG_INFO_BTF")


def has_tracepoint(name: str) -> bool:
    """True if the kernel's type information has it: tracefs need not be mounted."""
    return f"btf_trace_{name}\0".encode() in BTF.read_bytes()
