"""What one input may cost, held by the kernel: a process that takes more is killed, or gets a MemoryError."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BLOCKED_SECONDS = 30.0  # of waiting without work, for what never comes
MEMORY_FACTOR, MEMORY_BASE = 10, 50 << 20  # bytes for each byte of the input, and for any
ENDINGS = {signal.SIGPROF: "hang", signal.SIGALRM: "hang: waits for ever", signal.SIGKILL: "killed: the machine is out of memory"}


def address_space() -> int:
    """Bytes that this process has mapped."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")


@contextmanager
def limited(input_size: int, mapped: int, cpu_seconds: float) -> Iterator[None]:
    """The block ends in time, and maps no more than an input of that size may cost; `mapped`: what the process has already."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY_FACTOR * input_size + MEMORY_BASE, hard))
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    signal.setitimer(signal.ITIMER_REAL, BLOCKED_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def let_timers_kill() -> None:
    """Python code does not get to see them: a compiled loop never returns to it."""
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)


def ending(status: int) -> str:
    """How a child came to its end, by its wait status; empty where it ended as it should."""
    code = os.waitstatus_to_exitcode(status)
    return "" if code == 0 else ENDINGS.get(signal.Signals(-code), f"killed by {signal.Signals(-code).name}") if code < 0 else "bug"
