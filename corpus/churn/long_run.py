"""The profiler samples the whole machine for a long time, and its own use of memory is measured meanwhile."""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from corpus.churn.profiled import PROFILE
from corpus.churn.remains import held_by

if TYPE_CHECKING:
    from collections.abc import Iterator

KIB = 1 << 10
WARM = 0.25  # of the time
MOMENTS = 30  # at which it is measured


class Use(NamedTuple):
    """What the profiler holds at one moment: bytes, and the number of descriptors."""

    seconds: float
    resident: int  # of the profiler, without its workers
    workers: int  # resident, of its worker processes
    maps: int  # of the kernel program's maps without tables
    tables: int
    descriptors: int


class LongRun(NamedTuple):
    uses: list[Use]
    status: int
    printed: str


def long_run(seconds: float) -> LongRun:
    """Profile the whole machine, with whatever runs there."""
    with tempfile.TemporaryFile("w+b") as printed:
        process = subprocess.Popen([*PROFILE, "--system", "-d", str(seconds)], stdout=printed, stderr=subprocess.STDOUT)
        uses = list(_watch(process, seconds / MOMENTS))
        printed.seek(0)
        return LongRun(uses, process.wait(), printed.read().decode(errors="replace"))


def growth(uses: list[Use]) -> dict[str, float]:
    """Return by which factor each value grew from the end of the warming up to the end."""
    warm = next(use for use in uses if use.seconds >= WARM * uses[-1].seconds)
    last = uses[-1]
    return {name: getattr(last, name) / getattr(warm, name) for name in Use._fields[1:] if getattr(warm, name)}


def use_of(pid: int, seconds: float) -> Use:
    held = held_by(pid)
    workers = sum(_resident(child) for child in held.children)
    descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return Use(seconds, _resident(pid), workers, held.own_bytes, held.table_bytes, descriptors)


def _watch(process: subprocess.Popen[bytes], interval: float) -> Iterator[Use]:
    """Measure a running profiler at intervals until it ends."""
    began = time.monotonic()
    while process.poll() is None:
        try:
            process.wait(interval)
        except subprocess.TimeoutExpired:
            try:
                use = use_of(process.pid, time.monotonic() - began)
            except OSError:  # it has ended
                return
            if use.maps:
                yield use


def _resident(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((KIB * int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), 0)
