"""Samples of a live process at regular intervals: how many, how long, and what ends them early."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Self

from sframegen.program.signals import ENDING
from sframegen.stack.live.process import Process
from sframegen.stack.report import Sample
from sframegen.stack.snapshot.snapshot import StackError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sframegen.stack.names.frame_names import Symbols
    from sframegen.stack.tracer import Tracer


class SamplePlan(NamedTuple):
    """When to take samples. `most`: their number; `seconds`: for how long; None: until the process ends."""

    interval: float
    most: int | None = 1
    seconds: float | None = None
    tid: int | None = None
    idle: bool = True  # include waiting threads


class _WokenError(Exception):
    """A signal came during a wait."""


class Interrupts:
    """Within the block, Ctrl-C and similar signals end the sampling, not the program. A second one ends the program too."""

    def __init__(self, *, at_once: bool) -> None:
        """`at_once`: the first signal ends the program, as long as there is no sample."""
        self.number = 0  # of the signal
        self.at_once = at_once
        self._waiting = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        for number in ENDING:
            if (handler := signal.getsignal(number)) is not signal.SIG_IGN:  # nohup
                self._before[number] = handler
                signal.signal(number, self._came)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type] # as it was handed out

    def _came(self, number: int, _frame: object) -> None:
        if self.number or self.at_once:
            self.__exit__()
            signal.raise_signal(number)
            return
        self.number = number
        if self._waiting:
            raise _WokenError

    def wait(self, waits: Callable[[], object]) -> None:
        """Call a function that waits. A signal ends the wait; after one, return at once."""
        try:
            self._waiting = True
            if not self.number:
                waits()
        except _WokenError:
            pass
        finally:
            self._waiting = False


class SampledCommand:
    """A program, started to be sampled."""

    def __init__(self, arguments: tuple[str, ...]) -> None:
        """Raises OSError."""
        import subprocess  # noqa: PLC0415 - slow to import, and most samples are of a process that runs

        self._timeout = subprocess.TimeoutExpired
        self._process = subprocess.Popen(arguments)
        self.pid = self._process.pid

    def wait(self, seconds: float) -> None:
        with suppress(self._timeout):
            self._process.wait(seconds)

    def runs(self) -> bool:
        return self._process.poll() is None

    def finish(self, interrupts: Interrupts) -> int:
        """Wait for its end, and return its exit status, as shells have it. It gets Ctrl-C itself; other signals are passed on."""
        interrupts.wait(self._process.wait)
        if self._process.poll() is None:
            if interrupts.number != signal.SIGINT:
                self._process.send_signal(interrupts.number)
            self._process.wait()
        status = self._process.returncode
        return status if status >= 0 else 128 - status


class Sampler:
    """Takes samples of a process, or of a running command."""

    def __init__(self, tracer: Tracer, symbols: Symbols, plan: SamplePlan, interrupts: Interrupts) -> None:
        self._tracer, self._symbols, self._plan, self._interrupts = tracer, symbols, plan, interrupts
        self.taken = 0
        self.unread: dict[str, str] = {}  # files that could not be opened, and why

    def samples(self, pid: int, command: SampledCommand | None = None) -> Iterator[tuple[Sample, list[str]]]:
        """Return each sample with its problems. Raises StackError, also if the process ends before `plan.most` samples."""
        plan = self._plan
        with Process(pid) as process:
            self.unread = process.unread
            due = time.monotonic() + (plan.interval if command else 0)
            last = due + plan.seconds if plan.seconds is not None else None
            while plan.most is None or self.taken < plan.most:
                runs = self._wait_until(due, command)
                if self._interrupts.number:
                    return
                if not runs and not self._may_end:
                    raise StackError(f"process {pid}: it has ended")
                if not runs:
                    return
                try:
                    sample = self._take(process)
                except StackError:
                    if self._may_end and process.has_ended():
                        return
                    raise
                yield sample
                due = max(due + plan.interval, time.monotonic())
                if last is not None and due > last:
                    return

    @property
    def _may_end(self) -> bool:
        """True if the process may end: the plan waits for its end, or the same signal ended both."""
        return bool(self._interrupts.number or (self.taken and self._plan.most is None))

    def _wait_until(self, due: float, command: SampledCommand | None) -> bool:
        """Wait. Return False if the command has ended meanwhile."""
        seconds = max(due - time.monotonic(), 0)
        self._interrupts.wait(partial(command.wait if command else time.sleep, seconds))
        return command is None or command.runs()

    def _take(self, process: Process) -> tuple[Sample, list[str]]:
        before = process.stopped_seconds
        threads = self._tracer.trace_process(process, self._plan.tid)
        if not self._plan.idle:
            threads = [thread for thread in threads if not thread.idle]
        self._symbols.follow(process.pid, threads)
        stopped_ms = round(1000 * (process.stopped_seconds - before), 3)
        self.taken += 1
        self._interrupts.at_once = False
        return Sample(process.pid, process.executable, threads, stopped_ms), list(self._tracer.problems.values())
