"""How long a kernel program runs for a sample: the kernel's statistics of what a profiler has loaded."""

from __future__ import annotations

import os
import re
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.profilers.run_time import run_time_measured
from benchmarks.profilers.running import Failed, Recording, progress
from benchmarks.profilers.samplers import BY_DWARF, BY_FRAME_POINTERS, OURS, Request, missing
from benchmarks.profilers.targets import PROGRAMS, TARGETS, running
from corpus.stacks.workloads import must

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.profilers.readers import Sampled
    from benchmarks.profilers.samplers import Sampler

PERF_EVENT = "7"  # BPF_PROG_TYPE_PERF_EVENT
FIELD = re.compile(r"^(prog_type|prog_id|run_time_ns|run_cnt):\s+(\d+)$", re.MULTILINE)
DEPTHS = (15, 35, 105)
FREQUENCY = 4999
COLD_FREQUENCY = 199
WARMING = 3.0  # seconds that a compiler works before it is sampled
COMPILER = ("gcc", "-O2", "-fno-optimize-sibling-calls")
WITH_POINTERS = ("-fno-omit-frame-pointer", "-mno-omit-leaf-frame-pointer")


class PerSample(NamedTuple):
    """`nanoseconds`: of the program for each stack that was walked; `frames`: of such a stack, on average.

    A run for another process, or an idle CPU, takes time, too: what it takes with a target that sleeps.
    """

    sampler: str
    program: str
    nanoseconds: float
    frames: float
    walked: int
    runs: int


def depths(seconds: float, folder: Path, failures: list[str]) -> Iterator[PerSample]:
    """With a target on each CPU, so that all but a few runs of the kernel program are for samples of them."""
    ways = (
        ("no frame pointers", OURS, ()),
        ("no frame pointers", BY_DWARF, ()),
        ("frame pointers", BY_FRAME_POINTERS, WITH_POINTERS),
    )
    with run_time_measured():
        for number, (what, sampler, flags) in enumerate(way for way in ways if not missing(way[1])):
            program = folder / f"depth-{number}"
            must(*COMPILER, *flags, PROGRAMS / "depth.c", "-o", program)
            for depth in DEPTHS:
                with ExitStack() as stack:
                    pids = tuple(stack.enter_context(running(program, str(depth), "0", "0")) for _ in _cpus())
                    request = Request(pids, FREQUENCY, folder / f"run-{number}-{depth}")
                    yield from _noted(failures, sampler, f"{depth} frames, {what}", request, seconds)


def large(seconds: float, folder: Path, failures: list[str]) -> Iterator[PerSample]:
    """Compilers, one on each CPU."""
    clang = next(target for target in TARGETS if target.name == "clang")
    with run_time_measured(), ExitStack() as stack:
        try:
            pids = tuple(stack.enter_context(clang.start(_made(folder / f"clang-{cpu}"))) for cpu in _cpus())
        except OSError as error:
            failures.append(f"clang: {error}")
            return
        time.sleep(WARMING)
        for sampler in (one for one in (OURS, BY_DWARF, BY_FRAME_POINTERS) if not missing(one)):
            request = Request(pids, COLD_FREQUENCY, folder / f"run-{sampler.name}")
            yield from _noted(failures, sampler, "clang", request, seconds)


def _cpus() -> Sequence[int]:
    return sorted(os.sched_getaffinity(0))


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _noted(failures: list[str], sampler: Sampler, program: str, request: Request, seconds: float) -> Iterator[PerSample]:
    try:
        yield _one(sampler, program, request, seconds)
    except Failed as error:
        failures.append(f"{program}: {error}")


def _one(sampler: Sampler, program: str, request: Request, seconds: float) -> PerSample:
    with running("sleep", "infinity") as pid:
        elsewhere = request._replace(pids=(pid,), folder=request.folder.with_name(f"{request.folder.name}-asleep"))
        taken, without, _ = _sampled(sampler, elsewhere, max(1, seconds / 3))
    nanoseconds, runs, stacks = _sampled(sampler, request, seconds)
    walked = sum(one.times for one in stacks)
    if not walked:
        raise Failed(f"{sampler.name}: no samples")
    each = (nanoseconds - (runs - walked) * taken / without) / walked
    frames = sum(one.times * one.depth for one in stacks) / walked
    progress(f"{sampler.name}, {program}: {each:.0f} ns, {walked} of {runs} runs; {taken / without:.0f} ns for the others")
    return PerSample(sampler.name, program, each, frames, walked, runs)


def _sampled(sampler: Sampler, request: Request, seconds: float) -> tuple[int, int, list[Sampled]]:
    """(nanoseconds, runs, stacks)."""
    recording = Recording(sampler, request)
    try:
        time.sleep(seconds)
        nanoseconds, runs = _run_time(recording.process.pid)
        recording.interrupt()
        recording.end()
    except BaseException:
        recording.kill()
        raise
    return nanoseconds, runs, list(sampler.read(request, []))


def _run_time(pid: int) -> tuple[int, int]:
    """(nanoseconds, runs) of the programs for perf events that a process has loaded."""
    found: dict[str, tuple[int, int]] = {}
    for file in Path(f"/proc/{pid}/fdinfo").iterdir():
        fields = dict(FIELD.findall(file.read_text()))
        if fields.get("prog_type") == PERF_EVENT:
            found[fields["prog_id"]] = int(fields["run_time_ns"]), int(fields["run_cnt"])
    return sum(time for time, _ in found.values()), sum(runs for _, runs in found.values())
