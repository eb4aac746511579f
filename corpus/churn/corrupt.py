"""Processes that damage what the profiler reads: it ends well, the kernel is well, and the stacks of other processes are right."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from benchmarks.profilers.run_time import run_time_measured
from corpus.churn.profiled import Profiled, only_of, profile, trouble_in_kernel
from corpus.churn.truth import OURS, Verdict, judge

if TYPE_CHECKING:
    from pathlib import Path

KINDS = {
    "stack": "overwrites return addresses and saved registers on its stack",
    "registers": "frame pointers in a loop, SP and FP at addresses of the kernel, misaligned, in guard pages",
    "deep": "200,000 frames on a stack of 4 GB",
    "sections": "overwrites its ELF header and its CFI in memory",
    "files": "maps damaged ELF files as code, shortens and extends them, puts FIFOs in their places",
}
LIMIT = 200.0  # microseconds of a run of the kernel program, on average; 1,024 frames take less


class CorruptRow(NamedTuple):
    kind: str
    run: Profiled
    samples: int  # of the process that corrupts
    others: Verdict
    faults: list[str]


def corrupt(folder: Path, seconds: float) -> list[CorruptRow]:
    """Profile each kind of process beside restless ones."""
    with run_time_measured():
        return [_row(kind, folder, seconds) for kind in KINDS]


def _row(kind: str, folder: Path, seconds: float) -> CorruptRow:
    before = trouble_in_kernel()
    (folder / "files").mkdir(exist_ok=True)
    bad = f"{folder}/corrupting {seconds} {kind} {folder}/files"
    run = profile("--", "sh", "-c", f"{bad} & {folder}/restless {seconds} {folder} busy fork plugins; wait")
    faults = [run.fault] if run.fault else []
    faults += [f"kernel: {line}" for line in trouble_in_kernel() if line not in before]
    if run.microseconds > LIMIT:
        faults.append(f"{run.microseconds:.0f} µs for a run of the kernel program")
    if not run.profile:
        return CorruptRow(kind, run, 0, Verdict(0, 0, {}, {}, {}, 0), faults)
    others = judge(only_of(run.profile, OURS))
    faults += others.faults
    samples = sum(stack["samples"] for stack in only_of(run.profile, ["corrupting"])["stacks"])
    return CorruptRow(kind, run, samples, others, faults)
