"""Whole processes, measured from outside: wall and CPU time, peak memory, several commands in turn so that drift hits all alike."""

from __future__ import annotations

import os
import re
import select
import subprocess
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SAMPLE_MILLISECONDS = 2
MEMORY = re.compile(r"^(VmHWM|RssAnon):\s+(\d+) kB$", re.MULTILINE)


class Run(NamedTuple):
    """One run of a command. `peak_bytes` counts mapped pages of files too, `anonymous_bytes` does not.

    Memory is sampled: the kernel's own maximum counts what the process was before it became the command, a copy of this one.
    `largest_bytes` is that maximum, of the largest process among the command and those that it ran.
    """

    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int
    anonymous_bytes: int
    largest_bytes: int
    page_faults: int


class Figures(NamedTuple):
    """The median of several runs."""

    wall_seconds: float
    cpu_seconds: float
    peak_bytes: float
    anonymous_bytes: float
    largest_bytes: float
    page_faults: float


def run(command: Sequence[str | Path]) -> Run:
    """Runs a command to its end with its output read by nobody. Raises CalledProcessError where it fails."""
    started = time.perf_counter()
    peak = anonymous = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        descriptor = os.pidfd_open(process.pid)
        try:
            end = select.poll()
            end.register(descriptor, select.POLLIN)
            ended = False
            while not ended:
                now = _memory(process.pid)
                peak, anonymous = max(peak, now.get("VmHWM", 0)), max(anonymous, now.get("RssAnon", 0))
                ended = bool(end.poll(SAMPLE_MILLISECONDS))
            wall = time.perf_counter() - started
        finally:
            os.close(descriptor)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    faults = usage.ru_minflt + usage.ru_majflt
    return Run(wall, usage.ru_utime + usage.ru_stime, peak, anonymous, usage.ru_maxrss * 1024, faults)


def in_turn(commands: Mapping[str, Sequence[str | Path]], rounds: int, scratch: Path) -> dict[str, Figures]:
    """Medians over `rounds` rounds of all commands, after one that is not counted; `scratch` is removed before each run."""
    runs: dict[str, list[Run]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, command in commands.items():
            scratch.unlink(missing_ok=True)
            measured = run(command)
            if number:
                runs[name].append(measured)
    scratch.unlink(missing_ok=True)
    return {name: Figures(*(median(values) for values in zip(*measured, strict=True))) for name, measured in runs.items()}


def _memory(pid: int) -> dict[str, int]:
    """In bytes; nothing of a process that has just ended."""
    return {name: int(value) * 1024 for name, value in MEMORY.findall(Path(f"/proc/{pid}/status").read_text())}
