"""Runs the program that waits under the profiler, and adds up the time of each thread by reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from sframegen.profile.packed_frames import OffCpu, off_cpu_label

SOURCE = Path(__file__).parent / "programs" / "waits.c"
FLAGS = ("-O2", "-fomit-frame-pointer", "-pthread")
MICRO = 1000
LABELS = {off_cpu_label(reason): reason for reason in OffCpu}


class Waited(NamedTuple):
    """One thread; all times in nanoseconds. `used`, `passed`: by its own clocks. `ran`, `delayed`: by the scheduler."""

    name: str
    tid: int
    passed: int
    used: int
    ran: int
    delayed: int
    off: Counter[OffCpu]
    on: int  # of samples on the CPU

    @property
    def error(self) -> float:
        """Return how far the time off the CPU and the CPU time are from the time that passed."""
        return (self.off.total() + self.ran) / self.passed - 1

    @property
    def ready(self) -> int:
        """Return the time that it could have run."""
        return self.off[OffCpu.PREEMPTED] + self.off[OffCpu.WAITING]


class Run(NamedTuple):
    waits: list[Waited]
    stolen: int  # nanoseconds: time of all CPUs that the hypervisor gave to others
    said: list[str]  # what the profiler printed


def compile_program(folder: Path) -> Path:
    program = folder / "waits"
    subprocess.run(["gcc", *FLAGS, SOURCE, "-o", program], check=True)
    return program


def run(program: Path, seconds: float, mode: str, folder: Path) -> Run:
    """`mode`: --off-cpu or --wall."""
    output = folder / "profile.json"
    options = ["--by", "tid", "--output", str(output), mode]
    before = _stolen()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "sframegen", "profile", *options, "--", program, str(seconds), folder / "file"],
        capture_output=True,
        text=True,
        check=True,
    )
    stolen = _stolen() - before
    profile = json.loads(output.read_text())
    waits = []
    for line in done.stdout.splitlines():
        name, *numbers = line.split()
        tid, *times = map(int, numbers)
        passed, used, ran, delayed = times
        off, on = _times(profile, name, tid)
        waits.append(Waited(name, tid, passed, used, ran, delayed, off, on))
    return Run(waits, stolen, done.stderr.splitlines())


def _times(profile: dict[str, Any], name: str, tid: int) -> tuple[Counter[OffCpu], int]:
    off: Counter[OffCpu] = Counter()
    on = 0
    labels = [frame["function"] for frame in profile["frames"]]
    for stack in profile["stacks"]:
        functions = [labels[frame] for frame in stack["frames"]]
        if stack["tid"] == tid and name in functions:
            reason = LABELS.get(functions[-1])
            if reason is None:
                on += stack["samples"] * MICRO
            else:
                off[reason] += stack["samples"] * MICRO
    return off, on


def _stolen() -> int:
    line = Path("/proc/stat").read_text().splitlines()[0]
    return int(line.split()[8]) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
