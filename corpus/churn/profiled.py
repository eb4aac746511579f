"""One run of sframegen profile, with what it printed and how it behaved."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from corpus.churn.remains import bpftool, programs_of

if TYPE_CHECKING:
    from collections.abc import Sequence

PROFILE = (sys.executable, "-P", "-m", "sframegen", "profile")
AT_MOST = 300.0  # seconds after which a profiler is said to hang
TROUBLE = ("BUG", "WARNING", "stall", "lockup", "Oops", "general protection", "Call Trace", "hung task")
EVENT_PROGRAM = "on_event"
KIB = 1 << 10
POLL = 0.1


class Profiled(NamedTuple):
    """`profile`: the JSON object; empty if there is none. `peak`: bytes resident. `microseconds`: a run of the kernel program."""

    profile: dict[str, Any]
    status: int
    errors: str
    seconds: float
    peak: int
    microseconds: float

    @property
    def fault(self) -> str:
        """What is wrong with the run itself; empty if nothing is."""
        if "Traceback" in self.errors:
            return f"traceback: {self.errors[-400:]}"
        return "" if self.profile else f"status {self.status} after {self.seconds:.0f} s: {self.errors[-400:]}"


def profile(*arguments: object, frequency: int = 999, environment: dict[str, str] | None = None) -> Profiled:
    """Profile, and return the JSON. `arguments`: as the command has them."""
    with tempfile.TemporaryDirectory(prefix="corpus-churn-") as folder:
        out = Path(folder, "profile.json")
        with Path(folder, "errors").open("w+b") as errors:
            began = time.monotonic()
            command = [*PROFILE, "-F", str(frequency), "-o", str(out), *map(str, arguments)]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env={**os.environ, **(environment or {})})
            peak, microseconds = 0, 0.0
            while process.poll() is None:
                peak = max(peak, _peak(process.pid))
                microseconds = _microseconds(process.pid) or microseconds
                if time.monotonic() - began > AT_MOST:
                    process.kill()
                time.sleep(POLL)
            errors.seek(0)
            printed = errors.read().decode(errors="replace")
            found = json.loads(out.read_text()) if out.exists() else {}
            return Profiled(found, process.returncode, printed, time.monotonic() - began, peak, microseconds)


def only_of(profile: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the profile with the stacks of processes with these names only."""
    return {**profile, "stacks": [stack for stack in profile["stacks"] if stack["process"] in names]}


def trouble_in_kernel() -> list[str]:
    """Return the kernel's messages that say that something is wrong with it."""
    run = subprocess.run(["dmesg"], stdout=subprocess.PIPE, text=True, errors="replace", check=False)
    return [line for line in run.stdout.splitlines() if any(word in line for word in TROUBLE)]


def _peak(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((KIB * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


def _microseconds(pid: int) -> float:
    """Return the mean time of a run of the kernel program; 0 while the kernel does not measure."""
    for number in programs_of(pid):
        for program in bpftool("prog", "show", "id", str(number)):
            if program.get("name") == EVENT_PROGRAM and program.get("run_cnt"):
                return float(program["run_time_ns"]) / int(program["run_cnt"]) / 1000
    return 0.0
