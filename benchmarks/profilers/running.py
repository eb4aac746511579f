"""Profilers as processes: started, waited for until they sample, ended with SIGINT, and measured."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.profilers.samplers import Request, Sampler

PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
STARTING = 20  # seconds until a profiler has to sample
AGAIN = 20  # seconds until another SIGINT: bpftrace may miss one
ENDING = 120  # seconds until it has written what it has
SETTLED, QUIET = 0.4, 0.08  # seconds for which it has opened no more events, and CPU time it may take in them


class Recorded(NamedTuple):
    """CPU time of the profiler and the processes it started: until it sampled, and from then on. `written`: bytes of its files."""

    beginning: float
    sampling: float
    written: int


class Failed(Exception):  # noqa: N818 - it is the profiler that failed
    """A profiler that does not start, or ends with an error: its own words."""


class Recording:
    """A profiler that samples from here on; `interrupt` and `end` have to be called, or `kill`."""

    def __init__(self, sampler: Sampler, request: Request, *, verbose: bool = False) -> None:
        self.sampler, self.request = sampler, request
        request.folder.mkdir()
        self.errors = request.folder / "errors"
        command = sampler.command(request)
        command[1:1] = sampler.verbose if verbose else ()
        with request.output.open("wb") as output, self.errors.open("wb") as errors:
            both = output if verbose and sampler.verbose else errors  # eu-stackprof prints its stacks to standard error
            environment = {**os.environ, **sampler.environment}
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=both, env=environment)
        try:
            self._wait()
        except BaseException:
            self.kill()
            raise
        self.beginning = _cpu_seconds(self.process.pid)

    def _wait(self) -> None:
        """Until it has opened what samples, and does nothing more."""
        events, used, since, deadline = 0, 0.0, time.monotonic(), time.monotonic() + STARTING
        while not events or time.monotonic() - since < SETTLED:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"{self.sampler.name}: {self._words()}")
            now, seconds = _opened(self.process.pid, self.sampler.sign), _cpu_seconds(self.process.pid)
            if now != events or seconds - used > QUIET:
                events, used, since = now, seconds, time.monotonic()
            time.sleep(0.02)

    def interrupt(self) -> None:
        """Also where it has ended by itself: nobody has waited for it yet."""
        os.kill(self.process.pid, signal.SIGINT)

    def end(self) -> Recorded:
        """After `interrupt`."""
        deadline = time.monotonic() + ENDING
        again = time.monotonic() + AGAIN
        while (ended := os.wait4(self.process.pid, os.WNOHANG))[0] == 0:
            if time.monotonic() > deadline:
                self.kill()
                raise Failed(f"{self.sampler.name}: does not end")
            if time.monotonic() > again:
                self.interrupt()
                again += AGAIN
            time.sleep(0.01)
        usage = ended[2]
        self.process.returncode = os.waitstatus_to_exitcode(ended[1])
        if self.process.returncode not in (0, -signal.SIGINT, 130):
            raise Failed(f"{self.sampler.name}: {self._words()}")
        written = sum(file.stat().st_size for file in self.request.folder.iterdir() if file != self.errors)
        return Recorded(self.beginning, usage.ru_utime + usage.ru_stime - self.beginning, written)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def _words(self) -> str:
        if self.process.returncode is None:
            return "does not begin to sample"
        lines = (self.errors.read_text(errors="replace") + self.request.output.read_text(errors="replace")).strip().splitlines()
        return lines[-1] if lines else f"exit status {self.process.returncode}"


def _opened(pid: int, sign: str) -> int:
    """File descriptors of one kind."""
    found = 0
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found += sign in str(link.readlink())
    return found


def _cpu_seconds(pid: int) -> float:
    """Add up those of a process, its children that run, and those that have ended."""
    seconds = 0.0
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        seconds += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        for task in Path(f"/proc/{pid}/task").iterdir():
            seconds += sum(map(_cpu_seconds, map(int, (task / "children").read_text().split())))
    return seconds


@contextmanager
def samply_allowed() -> Iterator[str]:
    """Set kernel.perf_event_paranoid to 1, which samply asks for of root also, and restore it; yields a sentence about it."""
    before = PARANOID.read_text()
    if int(before) <= 1:
        yield ""
        return
    try:
        PARANOID.write_text("1")
    except OSError as error:
        yield f"kernel.perf_event_paranoid is {int(before)}, which samply refuses, and cannot be set ({error.strerror})."
        return
    try:
        yield f"kernel.perf_event_paranoid was set from {int(before)} to 1 for samply while this ran."
    finally:
        PARANOID.write_text(before)


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
