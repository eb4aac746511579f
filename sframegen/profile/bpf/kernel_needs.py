"""Checks that the running kernel has the features that the kernel program needs."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from sframegen.profile.bpf.libbpf import LoadError

FEATURES = {  # with the release that brought each
    "arrays of BPF that user space maps": (5, 5),
    "reading whole hash maps in batches": (5, 6),
    "ring buffers of BPF": (5, 8),
    "inner maps of different sizes": (5, 10),
    "the current task as a typed pointer": (5, 11),
    "atomic operations of BPF that return a value": (5, 12),
    "pointers as arguments of global functions": (5, 12),
    "the user registers of a task": (5, 15),
}
MINIMUM = max(FEATURES.values())
# In these releases with CONFIG_HARDENED_USERCOPY, reading user memory may wait for a lock that the interrupted code holds, and the
# machine hangs. The bug came with 5.19, and 6.4 corrects it. The values are the stable releases with the correction, or None.
DEADLOCKING: dict[tuple[int, int], int | None] = {(5, 19): None, (6, 0): None, (6, 1): 36, (6, 2): None, (6, 3): 10}
BTF = Path("/sys/kernel/btf/vmlinux")
PID_NAMESPACE, FIRST_NAMESPACE = Path("/proc/self/ns/pid"), 0xEFFFFFFC  # the inode of the kernel's initial PID namespace


def check_kernel(release: str | None = None, built: str | None = None) -> None:
    """Raise LoadError if the kernel cannot run the kernel program. `release`, `built`: as uname -r and -v print them."""
    release = os.uname().release if release is None else release
    built = os.uname().version if built is None else built
    numbers = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", release)
    series = (int(numbers[1]), int(numbers[2])) if numbers else MINIMUM
    if series < MINIMUM:
        missing = next(feature for feature, since in FEATURES.items() if series < since)
        least = ".".join(map(str, MINIMUM))
        raise LoadError(f"the kernel is {release}, and the kernel program needs {least} or newer: this one lacks {missing}")
    if numbers and series in DEADLOCKING:
        # Debian's `release` is 6.1.0-50 for every 6.1.x, but `built` contains the real number.
        debian = re.search(rf"Debian {series[0]}\.{series[1]}\.(\d+)", built)
        corrected = DEADLOCKING[series]
        if corrected is None or int((debian[1] if debian else numbers[3]) or 0) < corrected:
            since = "6.4" if corrected is None else f"{series[0]}.{series[1]}.{corrected}"
            bug = "it may lock up when BPF reads user memory in interrupts"
            raise LoadError(f"the kernel is {release}: {bug}; {since} and newer do not")
    if not BTF.exists():
        raise LoadError(f"the kernel has no {BTF}: it was built without CONFIG_DEBUG_INFO_BTF")
    check_namespace()


def check_namespace() -> None:
    """Raise LoadError in a PID namespace other than the first, because the kernel program sees the pids of the first one."""
    with suppress(OSError):
        if PID_NAMESPACE.stat().st_ino != FIRST_NAMESPACE:
            raise LoadError(
                "this container has its own PID namespace: run on the host, or start the container in the namespace of the host"
            )


def switch_has_state() -> bool:
    """Return True if the tracepoint sched_switch has the state of the leaving task as an argument, as it does since 5.18."""
    numbers = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= (5, 18)


def has_tracepoint(name: str) -> bool:
    """Return True if the kernel has the tracepoint, from its type information, because tracefs may not be mounted."""
    return f"btf_trace_{name}\0".encode() in BTF.read_bytes()
