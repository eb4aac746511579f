"""The stacks of a process of 64 threads: `sframegen stack` against eu-stack and gdb, and how long the process cannot run meanwhile.

The threads wait, 16 calls deep and deeper. Program and libraries are copies with sections; eu-stack and gdb read their `.eh_frame`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.figures import Figure
from benchmarks.measure import in_turn
from benchmarks.places import peer
from sframegen import add_section
from sframegen.stack.live.process import Process
from sframegen.stack.tracer import Tracer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


HERE = Path(__file__).parent
THREADS = 64
WALKS = 100
FRAME = re.compile(rb"^#", re.MULTILINE)
OURS = "sframegen stack"
WHOLE, STOPPED, GOING_ON = "stacks of 64 threads", "threads stopped", "one trace after the other"
GDB = (
    "gdb",
    "-nx",
    "-q",
    "-batch",
    "-iex",
    "set debuginfod enabled off",
    "-iex",
    "set debug-file-directory",
    "-iex",
    "set backtrace past-main on",
)


@contextmanager
def waiting(folder: Path) -> Iterator[int]:
    """A process whose threads are all where they wait."""
    compiler = ("gcc", "-O2", "-fno-optimize-sibling-calls")
    subprocess.run([*compiler, "-pthread", HERE / "threads.c", "-o", folder / "plain"], check=True)
    add_section(folder / "plain", output=folder / "threads")
    libraries = subprocess.run(["ldd", folder / "plain"], stdout=subprocess.PIPE, text=True, check=True).stdout
    for name, path in re.findall(r"(\S+) => (/\S+)", libraries):
        add_section(path, output=folder / name)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    with subprocess.Popen([folder / "threads"], env=environment) as process:
        try:
            while _asleep(process.pid) < THREADS:
                time.sleep(0.01)
            yield process.pid
        finally:
            process.kill()


def _asleep(pid: int) -> int:
    """Threads that are in pause()."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum((task / "syscall").read_text().split()[0] == "34" for task in tasks)


def stops(command: Sequence[str | Path], folder: Path) -> tuple[float, float]:
    """Seconds from the first stop of any thread to the last one's end, and the median of the threads' own."""
    times = folder / "times"
    times.unlink(missing_ok=True)
    environment = {**os.environ, "LD_PRELOAD": str(folder / "ptrace_times.so"), "PTRACE_TIMES": str(times)}
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    begun: dict[str, int] = {}
    ended: dict[str, int] = {}
    for line in times.read_text().splitlines():
        stops_it, tid, at = line.split()
        if stops_it == "1":
            begun.setdefault(tid, int(at))
        else:
            ended[tid] = int(at)
    if len(begun) != THREADS or begun.keys() != ended.keys():
        raise ValueError(f"{command[0]}: {len(begun)} threads stopped, {len(ended)} let go")
    whole = max(ended.values()) - min(begun.values())
    return whole / 1e9, median(ended[tid] - begun[tid] for tid in begun) / 1e9


class Walks(NamedTuple):
    """Frames a second of CPU time: of the walk alone; of one trace after the other. `stopped`: seconds, for each of these."""

    alone: float
    traced: float
    stopped: float


def walks(pid: int) -> Walks:
    tracer = Tracer()
    with Process(pid) as process:
        tracer.trace_process(process)
        before, begin = process.stopped_seconds, time.process_time()
        traced = sum(len(thread.frames) for _ in range(WALKS) for thread in tracer.trace_process(process))
        traced_seconds, stopped = time.process_time() - begin, process.stopped_seconds - before
        with process.stopped() as snapshot:
            held = snapshot._replace(file_of=lambda _: None)  # the walk is all that there is still to do
            tracer.trace(held)
            begin = time.process_time()
            again = sum(len(thread.frames) for _ in range(WALKS) for thread in tracer.trace(held))
            alone_seconds = time.process_time() - begin
    return Walks(again / alone_seconds, traced / traced_seconds, stopped / WALKS)


def measure(rounds: int) -> Iterator[Figure]:
    ours = (sys.executable, "-P", "-m", "sframegen", "stack")
    with tempfile.TemporaryDirectory(prefix="bench-stacks-") as scratch, waiting(Path(scratch)) as pid:
        folder = Path(scratch)
        shim = ("gcc", "-O2", "-shared", "-fPIC", HERE / "ptrace_times.c", "-o", folder / "ptrace_times.so")
        subprocess.run(shim, check=True)
        commands: Mapping[str, Sequence[str | Path]] = {
            "eu-stack": [peer("eu-stack"), "-n", "0", "--debuginfo-path=:", "-p", str(pid)],
            "gdb": [*GDB, "-p", str(pid), "-ex", "thread apply all bt"],
            OURS: [*ours, str(pid)],
            "sframegen stack --raw": [*ours, "--raw", str(pid)],
        }
        results = in_turn(commands, rounds, folder / "nothing")
        stopped = {name: [stops(command, folder) for _ in range(rounds)] for name, command in commands.items()}
        counted = {name: _frames(command) for name, command in commands.items()}
        walked = walks(pid)
    for name, figures in results.items():
        yield Figure(WHOLE, "time", name, figures.wall_seconds, "s")
        yield Figure(WHOLE, "CPU time", name, figures.cpu_seconds, "s")
        yield Figure(WHOLE, "memory", name, figures.peak_bytes / 1e6, "MB")
        yield Figure(WHOLE, "frames printed", name, counted[name], "all threads")
        first, own = (median(column) for column in zip(*stopped[name], strict=True))
        yield Figure(STOPPED, "first stop to last end", name, 1000 * first, "ms")
        yield Figure(STOPPED, "each thread, median", name, 1000 * own, "ms")
    yield Figure(GOING_ON, "the walk alone", OURS, walked.alone, "frames/s")
    yield Figure(GOING_ON, "trace after trace", OURS, walked.traced, "frames/s")
    yield Figure(GOING_ON, "stopped for each", OURS, 1000 * walked.stopped, "ms")


def _frames(command: Sequence[str | Path]) -> int:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    return len(FRAME.findall(done.stdout))
