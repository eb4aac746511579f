"""A process that is stopped at some moment, looked at, and goes on."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PATIENCE = 10.0  # seconds, until all threads stand still
CPUCLOCK_SCHED = 2  # of the kernel's ids of clocks, which are made of a process' id
MOST_PER_CPU_SECOND = 30  # seconds of waiting
STOPPED, ENDED = "Tt", "ZX"


LIBC = ctypes.CDLL(None)
PR_SET_PTRACER = 0x59616D61


class EndedError(Exception):
    """The process is no more."""


def _allow_tracers() -> None:
    """Where the kernel lets only parents trace: gdb is not one."""
    LIBC.prctl(PR_SET_PTRACER, ctypes.c_long(-1))


def wait_until_stopped(pid: int) -> None:
    """All its threads stand still when this returns. Raises EndedError."""
    deadline = time.monotonic() + PATIENCE
    while True:
        states = _states(Path(f"/proc/{pid}/task"))
        if all(state in ENDED for state in states):
            raise EndedError("gone")
        if all(state in STOPPED + ENDED for state in states):
            return
        if time.monotonic() > deadline:
            raise EndedError(f"does not stop: {states}")
        time.sleep(0.0002)


def _states(tasks: Path) -> list[str]:
    try:
        return [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks.iterdir()]
    except OSError:
        return []


class Target:
    def __init__(self, command: Sequence[str | Path], directory: Path, environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            command, cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, preexec_fn=_allow_tracers,  # noqa: PLW1509 - there are no threads here
        )  # fmt: skip
        self.pid = self._process.pid
        self._folder = Path(f"/proc/{self.pid}")

    def runs(self, program: Path) -> bool:
        """True if it is that program by now, whatever started it. Raises EndedError."""
        self._check()
        try:
            return os.readlink(self._folder / "exe") == str(program)  # noqa: PTH115 - a path that leads nowhere here, perhaps
        except OSError:
            return False

    def wait_for(self, program: Path) -> None:
        while not self.runs(program):
            time.sleep(0.001)

    def stop(self) -> None:
        """All threads stand still when this returns. Raises EndedError."""
        os.kill(self.pid, signal.SIGSTOP)
        self.wait_until_stopped()

    def wait_until_stopped(self) -> None:
        self._check()
        wait_until_stopped(self.pid)

    def run(self, seconds: float) -> None:
        """For that much CPU time, of all threads, but not much longer if it waits for something. Raises EndedError."""
        clock = ~self.pid << 3 | CPUCLOCK_SCHED
        deadline = time.monotonic() + MOST_PER_CPU_SECOND * seconds
        os.kill(self.pid, signal.SIGCONT)
        try:
            end = time.clock_gettime(clock) + seconds
            while time.clock_gettime(clock) < end and time.monotonic() < deadline:
                time.sleep(seconds / 20)
        except OSError:
            raise EndedError("gone") from None

    def mappings(self) -> str:
        return (self._folder / "maps").read_text()

    def end(self) -> None:
        """With everything that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def _check(self) -> None:
        if self._process.poll() is not None:
            raise EndedError(f"status {self._process.returncode}")
