"""What a profiler costs the program that it samples, and what it costs itself."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from shutil import rmtree
from typing import TYPE_CHECKING, Self

from benchmarks.measure import run
from benchmarks.profilers.running import Failed, Recording, progress
from benchmarks.profilers.samplers import Request, missing
from benchmarks.profilers.targets import depth_program

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from benchmarks.profilers.samplers import Sampler

FREQUENCIES = (99, 999, 9999)
FRAMES = 35
TURNS_TO_TIME = 20_000
SAMPLES = 10  # in a slice of the work
UNDISTURBED = 10  # percent of the slices: what else the machine does only makes others longer
NEAR = 1.5  # a profiler whose only frequency is within this factor takes part


@dataclass
class Cost:
    """Figures of one profiler at one frequency, a value each round: seconds of CPU time, bytes.

    `work`: the target's without a profiler; `overhead`: what it takes more, as a share of that; `beginning`, `sampling`: the
    profiler's and its processes', until it samples, and from then to its end; `written`: of its files. Of the first round only:
    `afterwards`, of the command that makes stacks of the copies, None where there is none; `taken`: the share of the samples that
    were due which the profiler has, None where it does not say.
    """

    frequency: int
    sampler: str
    work: list[float] = field(default_factory=list)
    overhead: list[float] = field(default_factory=list)
    beginning: list[float] = field(default_factory=list)
    sampling: list[float] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    afterwards: float | None = None
    taken: float | None = None


class Worker:
    """programs/depth.c, kept on one CPU, waiting until it is let work. Use it as a context."""

    def __init__(self, measured: Measured) -> None:
        numbers = map(str, (FRAMES, measured.turns, measured.slices))
        command: list[str | Path] = ["taskset", "--cpu-list", str(measured.cpu), measured.program, *numbers]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self.stdout.readline()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def work(self) -> list[float]:
        """Seconds of CPU time of each slice."""
        self.stdin.write("\n")
        self.stdin.flush()
        return [int(word) / 1e9 for word in self.stdout.readline().split()]


class Measured:
    """Runs of the same work at one frequency, with a profiler and without."""

    def __init__(self, program: Path, seconds: float, frequency: int) -> None:
        """`seconds`: that a run takes. A slice of the work has as many samples at each frequency."""
        self.program, self.cpu, self.frequency = program, max(os.sched_getaffinity(0)), frequency
        self.turns, self.slices = TURNS_TO_TIME, 1
        self.turns = max(1, round(TURNS_TO_TIME * SAMPLES / frequency / self.alone()))
        self.slices = max(1, round(seconds * frequency / SAMPLES))

    def alone(self) -> float:
        with Worker(self) as worker:
            return undisturbed(worker.work())

    def sampled(self, sampler: Sampler, cost: Cost) -> float:
        """Return the CPU time with the profiler; what it costs itself goes to `cost`. Raises Failed."""
        with Worker(self) as worker:
            request = Request((worker.process.pid,), sampler.frequency or self.frequency, self.program.parent / "run")
            try:
                recording = Recording(sampler, request)
                try:
                    slices = worker.work()
                finally:
                    recording.interrupt()
                recorded = recording.end()
                cost.beginning.append(recorded.beginning)
                cost.sampling.append(recorded.sampling)
                cost.written.append(recorded.written)
                if len(cost.written) == 1:
                    self.read(recording, cost, sum(slices))
            finally:
                rmtree(request.folder)
        return undisturbed(slices)

    def read(self, recording: Recording, cost: Cost, seconds: float) -> None:
        sampler, request = recording.sampler, recording.request
        if sampler.afterwards:
            cost.afterwards = run(sampler.afterwards(request)).cpu_seconds
        if not sampler.verbose:
            taken = sum(one.times for one in sampler.read(request, []))
            cost.taken = taken / seconds / request.frequency


def undisturbed(slices: Sequence[float]) -> float:
    return sorted(slices)[len(slices) * UNDISTURBED // 100]


def measure(samplers: Sequence[Sampler], rounds: int, seconds: float, folder: Path, failures: list[str]) -> Iterator[Cost]:
    """In each round every profiler once, each between two runs without one."""
    program = depth_program(folder)
    for frequency in FREQUENCIES:
        measured = Measured(program, seconds, frequency)
        taking_part = [one for one in samplers if not missing(one) and _near(one, frequency)]
        costs = {one.name: Cost(frequency, one.name) for one in taking_part}
        for number in range(rounds):
            before = measured.alone()
            first = number % max(1, len(taking_part))
            for sampler in taking_part[first:] + taking_part[:first]:
                try:
                    taken = measured.sampled(sampler, costs[sampler.name])
                except Failed as error:
                    failures.append(f"{frequency:,} Hz, {error}")
                    continue
                after = measured.alone()
                work = (before + after) / 2
                costs[sampler.name].work.append(work * measured.slices)
                costs[sampler.name].overhead.append(taken / work - 1)
                before = after
            progress(f"{frequency:,} Hz, round {number + 1} of {rounds}")
        yield from costs.values()


def _near(sampler: Sampler, frequency: int) -> bool:
    return sampler.frequency is None or frequency / NEAR < sampler.frequency < frequency * NEAR
