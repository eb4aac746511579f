"""Whole processes, measured from outside: wall and CPU time, peak memory, several commands in turn so that drift hits all alike."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SAMPLE_SECONDS = 0.002


class Run(NamedTuple):
    """One run of a command. `peak_bytes` counts mapped pages of files too, `anonymous_bytes` does not (sampled)."""

    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int
    anonymous_bytes: int


class Figures(NamedTuple):
    """The median of several runs."""

    wall_seconds: float
    cpu_seconds: float
    peak_bytes: float
    anonymous_bytes: float


def run(command: Sequence[str | Path]) -> Run:
    """Runs a command to its end with its output read by nobody. Raises CalledProcessError where it fails."""
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        anonymous = 0
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            anonymous = max(anonymous, _anonymous_bytes(process.pid))
            time.sleep(SAMPLE_SECONDS)
        wall = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, anonymous)


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


def _anonymous_bytes(pid: int) -> int:
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("RssAnon:")).split()[1]) * 1024
    return 0
