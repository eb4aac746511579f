"""The results, as docs/measured/profilers.json has them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.places import PEERS
from benchmarks.profilers.samplers import BPFTRACE, PERF

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.profilers.complete import Stacks
    from benchmarks.profilers.map_memory import FileTable, ProcessTables
    from benchmarks.profilers.overhead import Cost
    from benchmarks.profilers.per_sample import PerSample

VERSIONED: dict[str, tuple[str | Path, str]] = {
    "perf": (PERF, "--version"),
    "bpftrace": (BPFTRACE, "--version"),
    "clang": ("clang", "--version"),
}
NUMBER = re.compile(r"\d+(\.\d+)+")


class Results(NamedTuple):
    stacks: Sequence[Stacks]
    costs: Sequence[Cost]
    samples: Sequence[PerSample]
    files: Sequence[FileTable]
    processes: Sequence[ProcessTables]


def records(results: Results) -> dict[str, object]:
    """`work_seconds`: CPU time of the program that is slowed down, without a profiler."""
    return {
        "stacks": list(map(_stacks, results.stacks)),
        "work_seconds": round(median(value for one in results.costs for value in one.work), 2) if results.costs else None,
        "costs": [_cost(one) for one in results.costs if one.overhead],
        "samples": list(map(_sample, results.samples)),
        "files": list(map(_file, results.files)),
        "processes": list(map(_process, results.processes)),
    }


def _stacks(one: Stacks) -> dict[str, object]:
    """`whole`, and `guessed` of these: percentages, rounded down, so that 100 means all; `frames`: of a stack, on average."""
    shares = {"whole": one.complete * 1000 // one.samples / 10, "frames": round(one.frames / one.samples, 1)} if one.samples else {}
    shares |= {"guessed": one.guessed * 1000 // one.complete / 10} if one.complete else {}
    return {"program": one.target, "profiler": one.sampler, "samples": one.samples, **shares, "incomplete": one.ends}


def _cost(cost: Cost) -> dict[str, object]:
    """`overhead`: percentages of the program's CPU time; the seconds are the profiler's, the first until it samples."""
    low, _, high = quantiles(cost.overhead, n=4) if len(cost.overhead) > 1 else cost.overhead * 3
    return {
        "frequency": cost.frequency,
        "profiler": cost.sampler,
        "overhead": round(100 * median(cost.overhead), 1),
        "half_of_the_runs": [round(100 * low, 1), round(100 * high, 1)],
        "seconds_to_begin": round(median(cost.beginning), 2),
        "seconds_then": round(median(cost.sampling), 2),
        "seconds_afterwards": None if cost.afterwards is None else round(cost.afterwards, 2),
        "written_kb": round(median(cost.written) / 1000),
        "samples_taken": None if cost.taken is None else round(100 * cost.taken),
    }


def _sample(one: PerSample) -> dict[str, object]:
    """What the program in the kernel takes for a stack."""
    times = {"us_for_a_stack": round(one.nanoseconds / 1000, 1), "us_for_a_frame": round(one.nanoseconds / 1000 / one.frames, 2)}
    return {"profiler": one.sampler, "program": one.program, "frames": round(one.frames, 1), **times, "stacks": one.walked}


def _file(one: FileTable) -> dict[str, object]:
    size, taken = round(one.size / 1e6, 2), round(1000 * one.seconds)
    return {"file": one.name, "rows": one.rows, "rules": one.rules, "table_mb": size, "milliseconds": taken}


def _process(one: ProcessTables) -> dict[str, object]:
    """`tables`, `other_maps`: MB in the kernel."""
    sizes = {"tables": round(one.tables / 1e6, 2), "other_maps": round(one.others / 1e6, 1)}
    return {"process": one.name, "files": one.files, **sizes, "whole": one.stacks.complete, "samples": one.stacks.samples}


def versions() -> dict[str, object]:
    """Return those of the profilers, and what there is to know of the machine."""
    found: dict[str, object] = {}
    for name, command in VERSIONED.items():
        if shutil.which(command[0]):
            text = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout
            found |= {name: match[0]} if (match := NUMBER.search(text)) else {}
    packages = (PEERS / "versions").read_text().splitlines() if (PEERS / "versions").exists() else []
    found |= {name: version for name, version in map(str.split, packages) if name in ("elfutils", "samply")}
    return {"profilers": found, "virtual_machine": _virtual(), "hardware_counters": _has_counters()}


def _virtual() -> bool:
    return re.search(r"^flags\s*:.*\bhypervisor\b", Path("/proc/cpuinfo").read_text(), re.MULTILINE) is not None


def _has_counters() -> bool:
    return Path("/sys/bus/event_source/devices/cpu").exists()
