"""How many stacks reach the outermost frame: all profilers sample one process at the same time."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.profilers.endings import is_outermost, mappings
from benchmarks.profilers.running import Failed, Recording, progress
from benchmarks.profilers.samplers import Request

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from benchmarks.profilers.endings import Mapped
    from benchmarks.profilers.readers import Sampled
    from benchmarks.profilers.samplers import Sampler
    from benchmarks.profilers.targets import Target

FREQUENCY = 97
WARMING = 2.0  # seconds that a program works before it is sampled


class Stacks(NamedTuple):
    """Totals of one profiler and program.

    `guessed`: complete, with frames that are marked as guesses; `frames`: of all samples together; `ends`: why stacks are
    incomplete, if it is known.
    """

    target: str
    sampler: str
    samples: int
    complete: int
    guessed: int
    frames: int
    ends: Counter[str]


def count(target: str, sampler: str, sampled: Iterable[Sampled]) -> Stacks:
    totals: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    for one in sampled:
        whole = is_outermost(one.outermost)
        totals["samples"] += one.times
        totals["complete"] += one.times * whole
        totals["guessed"] += one.times * (whole and one.guessed)
        totals["frames"] += one.times * one.depth
        if one.end and not whole:
            ends[one.end] += one.times
    return Stacks(target, sampler, totals["samples"], totals["complete"], totals["guessed"], totals["frames"], ends)


def measure(
    targets: Sequence[Target], samplers: Sequence[Sampler], seconds: float, folder: Path, failures: list[str]
) -> Iterator[Stacks]:
    for target in targets:
        scratch = folder / target.name.replace(" ", "-")
        scratch.mkdir()
        try:
            with target.start(scratch) as pid:
                time.sleep(WARMING)
                recordings, maps = _record(pid, samplers, seconds, scratch, failures)
        except (OSError, subprocess.CalledProcessError) as error:
            failures.append(f"{target.name}: {error}")
            continue
        for recording in recordings:
            stacks = count(target.name, recording.sampler.name, recording.sampler.read(recording.request, maps))
            progress(f"{stacks.target}, {stacks.sampler}: {stacks.complete} of {stacks.samples}")
            yield stacks


def _record(
    pid: int, samplers: Sequence[Sampler], seconds: float, folder: Path, failures: list[str]
) -> tuple[list[Recording], list[Mapped]]:
    """All profilers at once, for some seconds after the last one has begun."""
    recordings: list[Recording] = []
    ended: list[Recording] = []
    maps: list[Mapped] = []
    try:
        for number, sampler in enumerate(samplers):
            with _noting(failures, folder.name):
                request = Request((pid,), sampler.frequency or FREQUENCY, folder / f"by-{number}")
                recordings.append(Recording(sampler, request, verbose=True))
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            with suppress(OSError):
                maps = mappings(Path(f"/proc/{pid}/maps").read_text()) or maps
            time.sleep(min(left, 1))
        for recording in recordings:
            recording.interrupt()
        while recordings:
            with _noting(failures, folder.name):
                recordings[0].end()
                ended.append(recordings[0])
            del recordings[0]
    finally:
        for recording in recordings:
            recording.kill()
    return ended, maps


@contextmanager
def _noting(failures: list[str], where: str) -> Iterator[None]:
    """A profiler that failed is named, and the others go on."""
    try:
        yield
    except Failed as error:
        failures.append(f"{where}, {error}")
