"""What it costs to profile the time off the CPU: two processes wake each other, alone, under sframegen profile and under bpftrace.

usage: python -m benchmarks.switches [ROUNDS]    Prints the figures. Needs root and gcc, and for bpftrace's row what
`tools/get-peers --profilers` gets.
"""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.profilers.samplers import BPFTRACE, WITH_TRACEFS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROUNDS = 5
SECONDS, DEPTH = 3, 12
CPU = (os.cpu_count() or 1) - 1
RATE = 100_000  # switches a second
SOURCE = Path(__file__).with_suffix(".c")
FLAGS = ("-O2", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls")
# What the tool offcputime counts: stacks and times, by frame pointers. There it needs kprobes, here a tracepoint.
SCRIPT = """
tracepoint:sched:sched_switch {
  if (comm == "switches") { @stack[tid] = ustack; @since[tid] = nsecs; }
  $since = @since[args.next_pid];
  if ($since) { @off[args.next_pid, @stack[args.next_pid]] = sum(nsecs - $since); delete(@since[args.next_pid]); }
}
"""


def main() -> None:
    print("\n".join(figures(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)))


def figures(rounds: int) -> Iterator[str]:
    """Measure, and return the lines that say what each way costs."""
    with tempfile.TemporaryDirectory() as scratch:
        program = Path(scratch, "switches")
        subprocess.run(["gcc", *FLAGS, SOURCE, "-o", program], check=True)
        ways: dict[str, Callable[[], int]] = {
            "alone": lambda: _alone(program),
            "sframegen profile --off-cpu": lambda: _ours(program),
        }
        if shutil.which(BPFTRACE):
            ways["bpftrace, frame pointers"] = lambda: _bpftrace(program)
        costs: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                costs[name].append(1e9 / way())
    yield f"median of {rounds} runs of {SECONDS} s, {DEPTH} frames and those of the C library; load {os.getloadavg()[0]:.1f}"
    alone = statistics.median(costs["alone"])
    yield f"alone: {alone:,.0f} ns a switch"
    for name, found in costs.items():
        if name != "alone":
            added = statistics.median(found) - alone
            spread = f"{min(found) - alone:,.0f} to {max(found) - alone:,.0f}"
            yield f"{name}: {added:,.0f} ns more ({spread}); at {RATE:,} switches a second {added * RATE / 1e7:.1f} % of a CPU"


@contextmanager
def _started(program: Path) -> Iterator[subprocess.Popen[bytes]]:
    pipe = subprocess.PIPE
    with subprocess.Popen([program, str(SECONDS), str(DEPTH), str(CPU)], stdin=pipe, stdout=pipe) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == b"here\n"
            yield process
        finally:
            process.kill()


def _switches(process: subprocess.Popen[bytes]) -> int:
    """Let them play, and return their switches per second."""
    assert process.stdin
    assert process.stdout
    process.stdin.write(b"\n")
    process.stdin.flush()
    return int(process.stdout.readline())


def _alone(program: Path) -> int:
    with _started(program) as process:
        return _switches(process)


def _ours(program: Path) -> int:
    with _started(program) as process:
        command: list[str | Path] = [sys.executable, "-P", "-m", "sframegen", "profile", "--off-cpu", str(process.pid)]
        return _beside(command, process)


def _bpftrace(program: Path) -> int:
    with _started(program) as process:
        environment = os.environ | {"BPFTRACE_MAX_MAP_KEYS": "65536"}
        command: list[str | Path] = ["unshare", "--mount", "sh", "-c", WITH_TRACEFS, "sh", BPFTRACE, "-e", SCRIPT]
        return _beside(command, process, environment)


def _beside(command: list[str | Path], process: subprocess.Popen[bytes], environment: dict[str, str] | None = None) -> int:
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=quiet, stderr=quiet, env=environment) as profiler:
        time.sleep(3)  # until it samples
        assert profiler.poll() is None, command
        found = _switches(process)
        profiler.send_signal(signal.SIGINT)
    return found


if __name__ == "__main__":
    main()
