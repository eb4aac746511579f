"""The report: docs/reports/profilers.md."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.places import PEERS
from benchmarks.profilers.samplers import BPFTRACE, PERF
from corpus.report_pages import linux
from corpus.run.report import table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from benchmarks.profilers.complete import Stacks
    from benchmarks.profilers.map_memory import FileTable, ProcessTables
    from benchmarks.profilers.overhead import Cost
    from benchmarks.profilers.per_sample import PerSample

HEAD = Path(__file__).with_name("head.md")
PARTS = re.compile(r"^## ", re.MULTILINE)
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


def markdown(results: Results, notes: Sequence[str], about: str) -> str:
    """`head.md` has the words of each section; the tables come after them. `notes`: what is missing, and why."""
    introduction, *parts = PARTS.split(HEAD.read_text())
    tables = (_stacks(results.stacks), _costs(results.costs), _samples(results.samples), _memory(results))
    lines = [introduction + f"One run: {about}.", "", *(f"- {note}" for note in notes), *[""] * bool(notes)]
    for number, part in enumerate(parts):
        lines += ["## " + part.rstrip(), "", *(tables[number] if number < len(tables) else [])]
    return "\n".join(lines).rstrip() + "\n"


def _stacks(stacks: Sequence[Stacks]) -> list[str]:
    samplers = list(dict.fromkeys(one.sampler for one in stacks))
    found = {(one.target, one.sampler): one for one in stacks}

    def rows(cell: Callable[[Stacks], str]) -> Iterable[Sequence[str]]:
        for target in dict.fromkeys(one.target for one in stacks):
            cells = (found.get((target, sampler)) for sampler in samplers)
            yield [target, *("" if one is None else cell(one) for one in cells)]

    def share(one: Stacks) -> str:
        return f"{_percent(one.complete, one.samples)}" if one.samples else "no samples"

    def depth(one: Stacks) -> str:
        return f"{one.frames / one.samples:.1f} ({one.samples:,})" if one.samples else ""

    lines = table(["stacks that reach the outermost frame", *samplers], rows(share))
    lines += table(["frames of a stack, on average (samples)", *samplers], rows(depth))
    ends = [(one.target, one.sampler, count, end) for one in stacks for end, count in one.ends.most_common()]
    return lines + (table(["program", "profiler", "incomplete stacks", "reason that it gives"], ends) if ends else [])


def _percent(part: int, whole: int) -> str:
    """Rounded down, so that 100 means all."""
    return f"{part * 1000 // whole / 10:.1f} %"


def _costs(costs: Sequence[Cost]) -> list[str]:
    lines = []
    head = ["program's CPU time", "half of the runs", "profiler's, to begin", "and then", "afterwards", "written", "samples taken"]
    if costs:
        work = median(value for one in costs for value in one.work)
        lines = [f"The work takes {work:.2f} s of CPU time without a profiler.", ""]
    for frequency in dict.fromkeys(one.frequency for one in costs):
        rows = [_cost(one) for one in costs if one.frequency == frequency and one.overhead]
        lines += table([f"{frequency:,} Hz", *head], rows)
    return lines


def _cost(cost: Cost) -> Sequence[str]:
    low, _, high = quantiles(cost.overhead, n=4) if len(cost.overhead) > 1 else cost.overhead * 3
    return (
        cost.sampler,
        f"{100 * median(cost.overhead):+.1f} %",
        f"{100 * low:+.1f} to {100 * high:+.1f} %",
        f"{median(cost.beginning):.2f} s",
        f"{median(cost.sampling):.2f} s",
        "" if cost.afterwards is None else f"{cost.afterwards:.2f} s",
        f"{median(cost.written) / 1000:,.0f} KB",
        "" if cost.taken is None else f"{100 * cost.taken:.0f} %",
    )


def _samples(samples: Sequence[PerSample]) -> list[str]:
    head = ("profiler", "program", "frames", "µs for a stack", "µs for a frame", "stacks")
    rows = [
        (
            *(one.sampler, one.program, f"{one.frames:.1f}", f"{one.nanoseconds / 1000:.1f}"),
            *(f"{one.nanoseconds / 1000 / one.frames:.2f}", one.walked),
        )
        for one in samples
    ]
    return table(head, rows) if rows else []


def _memory(results: Results) -> list[str]:
    files = [(one.name, one.rows, one.rules, f"{one.size / 1e6:.2f} MB", f"{1000 * one.seconds:.0f} ms") for one in results.files]
    processes = [
        (
            one.name,
            one.files,
            f"{one.tables / 1e6:.2f} MB",
            f"{one.others / 1e6:.1f} MB",
            f"{one.stacks.complete:,} of {one.stacks.samples:,}",
        )
        for one in results.processes
    ]
    lines = table(("file", "rows", "rules", "table", "made in"), files) if files else []
    if processes:
        lines += table(("process", "files with a table", "tables", "other maps", "whole stacks"), processes)
    return lines


def versions() -> str:
    """Return those of the profilers and the kernel, and what machine it is."""
    found = []
    for name, command in VERSIONED.items():
        if shutil.which(command[0]):
            text = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout
            found += [f"{name} {match[0]}"] if (match := NUMBER.search(text)) else []
    packages = (PEERS / "versions").read_text().splitlines() if (PEERS / "versions").exists() else []
    found += [line for line in packages if line.startswith(("elfutils ", "samply "))]
    cores = f"a virtual machine with {os.cpu_count()} cores" if _virtual() else f"a machine with {os.cpu_count()} cores"
    counters = "" if _has_counters() else " and no hardware counters"
    return f"{', '.join(found)}, {linux()}, measured on {cores}{counters}"


def _virtual() -> bool:
    return re.search(r"^flags\s*:.*\bhypervisor\b", Path("/proc/cpuinfo").read_text(), re.MULTILINE) is not None


def _has_counters() -> bool:
    return Path("/sys/bus/event_source/devices/cpu").exists()
