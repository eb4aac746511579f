"""Builds perf event attributes (struct perf_event_attr), and opens perf events. Explains why the kernel refuses one."""

from __future__ import annotations

import ctypes
import errno
import os
from dataclasses import astuple, dataclass
from enum import IntFlag
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from sframegen.base.errors import SframegenError
from sframegen.profile.machines import PERF_EVENT_OPEN
from sframegen.profile.this_machine import describe_root

TYPE_HARDWARE, TYPE_SOFTWARE, TYPE_CACHE = 0, 1, 3
SOFTWARE_DUMMY = 9  # an event that counts nothing, and is opened only for its records of mappings
CLOCK_MONOTONIC = 1
STRUCTURE_SIZE = 128
LAYOUT = Struct("=IIQQQQQI28xQIi32x")  # the fields of EventAttributes; all others are 0
COUNTS_LAYOUT = Struct("=QQQ")
FLAG_CLOEXEC = 8  # of perf_event_open
PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
MAX_RATE = Path("/proc/sys/kernel/perf_event_max_sample_rate")
OWN_EVENTS_LEVEL = 2  # the most kernel.perf_event_paranoid that allows user-space events of own processes
READ_TIMES = 3  # the read_format that `read_counts` needs

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long


class EventFlag(IntFlag):
    """The bit fields of struct perf_event_attr."""

    DISABLED = 1 << 0
    INHERIT = 1 << 1
    EXCLUDE_KERNEL = 1 << 5
    EXCLUDE_HYPERVISOR = 1 << 6
    MMAP = 1 << 8
    COMM = 1 << 9
    FREQUENCY = 1 << 10  # `period` is a frequency in Hz
    ENABLE_ON_EXEC = 1 << 12
    TASK = 1 << 13  # records of FORK and EXIT
    WATERMARK = 1 << 14  # `wakeup` counts bytes; otherwise samples
    SAMPLE_ID_ALL = 1 << 18
    EXCLUDE_CALLCHAIN_USER = 1 << 22
    MMAP2 = 1 << 23
    COMM_EXEC = 1 << 24
    USE_CLOCKID = 1 << 25


# The flags that are needed to follow the mappings of processes
FOLLOWING = EventFlag.MMAP | EventFlag.MMAP2 | EventFlag.COMM | EventFlag.COMM_EXEC | EventFlag.TASK
FOLLOWING |= EventFlag.SAMPLE_ID_ALL | EventFlag.WATERMARK | EventFlag.USE_CLOCKID


class SampleType(IntFlag):
    """Fields of a sample, in the order of the record, except that CPU comes before CALLCHAIN there."""

    TID = 1 << 1
    TIME = 1 << 2
    CALLCHAIN = 1 << 5
    CPU = 1 << 7
    REGS_USER = 1 << 12
    STACK_USER = 1 << 13


class EventError(SframegenError):
    """The kernel refuses an event. `number`: the errno."""

    def __init__(self, message: str, number: int = 0) -> None:
        super().__init__(message)
        self.number = number


@dataclass(frozen=True)
class EventAttributes:
    """Fields of struct perf_event_attr, in its order. `period`: with EventFlag.FREQUENCY, a frequency in Hz."""

    type: int
    size: int = STRUCTURE_SIZE
    config: int = 0
    period: int = 0
    sample_type: int = 0
    read_format: int = 0
    flags: int = 0
    wakeup: int = 0  # samples, or bytes with EventFlag.WATERMARK
    user_registers: int = 0  # mask of the kernel's register numbers
    user_stack: int = 0  # bytes, a multiple of 8 below 65,536
    clock: int = 0  # with EventFlag.USE_CLOCKID

    def pack(self) -> bytes:
        return LAYOUT.pack(*astuple(self))


def open_event(attributes: EventAttributes, pid: int, cpu: int, *, name: str = "") -> int:
    """Open an event and return its descriptor. `name`: the event's name in messages. Raises EventError.

    `pid` -1: all processes on that CPU; 0: this process. `cpu` -1: that thread on all CPUs.
    """
    number = PERF_EVENT_OPEN.get(os.uname().machine)
    if number is None:
        raise EventError(f"this machine ({os.uname().machine}) is not supported, only {', '.join(PERF_EVENT_OPEN)}", errno.ENOSYS)
    structure = ctypes.create_string_buffer(attributes.pack(), STRUCTURE_SIZE)
    arguments = (structure, ctypes.c_int(pid), ctypes.c_int(cpu), ctypes.c_int(-1), ctypes.c_ulong(FLAG_CLOEXEC))
    descriptor: int = _LIBC.syscall(ctypes.c_long(number), *arguments)
    if descriptor < 0:
        error = ctypes.get_errno()
        raise EventError(_explain_refusal(error, attributes, pid, name or "perf"), error)
    return descriptor


class EventCounts(NamedTuple):
    """How often an event happened, and how many nanoseconds it was enabled and running. `running`: the CPU time of a thread."""

    happened: int
    enabled: int
    running: int


def read_counts(descriptor: int) -> EventCounts:
    """Return the counts of an event opened with READ_TIMES, including all threads that inherited it, ended or not."""
    return EventCounts._make(COUNTS_LAYOUT.unpack(os.read(descriptor, COUNTS_LAYOUT.size)))


def read_paranoid_level() -> int | None:
    """Return the sysctl kernel.perf_event_paranoid; None if it cannot be read."""
    return _read_int(PARANOID)


def command_for_own_events() -> str:
    """Return the command that allows perf events of own processes; empty if kernel.perf_event_paranoid does not forbid them."""
    return f"sysctl kernel.perf_event_paranoid={OWN_EVENTS_LEVEL}" if (read_paranoid_level() or 0) > OWN_EVENTS_LEVEL else ""


def _read_int(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _is_own_process(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}").stat().st_uid == os.geteuid()
    except OSError:  # it has ended
        return True


def _explain_refusal(number: int, attributes: EventAttributes, pid: int, name: str) -> str:
    """Return a message for users on why the kernel refused an event with this errno, and what would allow it."""
    match number:
        case errno.EACCES | errno.EPERM:
            needed = 0 if pid == -1 else 1 + bool(attributes.flags & EventFlag.EXCLUDE_KERNEL)
            level = read_paranoid_level()
            is_forbidden_by_level = level is None or level > needed
            if pid > 0 and not (is_forbidden_by_level and _is_own_process(pid)):
                return f"process {pid}: {name} events of other users' processes need {describe_root()} or CAP_PERFMON"
            if not is_forbidden_by_level:
                allowed = f"though kernel.perf_event_paranoid is {level}"
                return f"{name} events are not allowed, {allowed}: a container or a policy forbids them"
            if pid == -1:  # only the kernel program needs them, and a lower level would not allow it
                return f"{name} events of all processes need {describe_root()}, or CAP_BPF and CAP_PERFMON"
            return (
                f"{name} events of your own processes need {describe_root()}, CAP_PERFMON, or kernel.perf_event_paranoid"
                f" of {needed} or less (it is {'unreadable' if level is None else level})"
            )
        case errno.EINVAL if attributes.flags & EventFlag.FREQUENCY and attributes.period > (most := _read_int(MAX_RATE) or 0) > 0:
            return f"{attributes.period:,} samples per second are more than kernel.perf_event_max_sample_rate allows: {most:,}"
        case errno.EMFILE | errno.ENFILE:
            return f"{name} events need more open files than the limit allows: raise it with `ulimit -n`"
        case errno.ENOENT | errno.EOPNOTSUPP | errno.ENODEV:
            return f"this machine has no {name} events"
        case errno.ESRCH:
            return f"process {pid}: no such process"
        case errno.ENOSYS:
            return "this kernel has no perf events"
        case errno.ENOMEM:
            return f"{name} events need more locked memory than is allowed"
        case _:
            return f"the kernel refuses {name} events: {os.strerror(number)}"
