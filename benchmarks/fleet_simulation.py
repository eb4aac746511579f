"""A run of a whole distribution on a cluster, simulated from measured costs: when do workers wait, and for what?

usage: python -m benchmarks.fleet_simulation RUN [--packages 300000] [--workers 64] [--package-ms 0.8] [--task-ms 6]

RUN is the directory of a real run: sizes and times of its packages are drawn from packages.parquet. `--package-ms` and `--task-ms`
are processor time of client and scheduler together, as `python -m benchmarks.fleet --parts tasks` measures them.
"""

from __future__ import annotations

import argparse
import heapq
import random
from pathlib import Path
from typing import NamedTuple

from sframegen.fleet.batches import batches
from sframegen.fleet.dask_engine import IN_FLIGHT_PER_THREAD, MIN_IN_FLIGHT, SHARES_PER_THREAD
from sframegen.fleet.sources.items import Item

SECONDS = ("seconds_fetching", "seconds_reading", "seconds_converting", "seconds_writing")


class Measured(NamedTuple):
    """One package of a real run."""

    size: int
    seconds: float


class Outcome(NamedTuple):
    workers: int
    tasks: int
    seconds: float
    busy: float  # of the workers' time
    coordinator: float  # of one core

    def cells(self) -> list[str]:
        return [
            f"{self.workers:,}",
            f"{self.tasks:,}",
            f"{self.seconds / 60:.1f} min",
            f"{100 * self.busy:.0f} %",
            f"{100 * self.coordinator:.0f} %",
        ]


def measured_in(run: Path) -> list[Measured]:
    from pyarrow import parquet  # noqa: PLC0415 - of the extra `fleet`

    rows = parquet.read_table(run / "packages.parquet", columns=["package_bytes", *SECONDS]).to_pylist()
    return [Measured(row["package_bytes"], sum(row[name] for name in SECONDS)) for row in rows]


def simulate(packages: list[Measured], workers: int, package_seconds: float, task_seconds: float) -> Outcome:
    """Tasks go one after the other through the coordinator, as many at once as the engine lets; the next free worker does each."""

    def fair_share(number: int) -> int:
        return (len(packages) - number) // (SHARES_PER_THREAD * workers)

    waiting = [(number, Item("", "", size=package.size)) for number, package in enumerate(packages)]
    free = [0.0] * workers
    running: list[float] = []  # ends of tasks in flight
    most = max(MIN_IN_FLIGHT, IN_FLIGHT_PER_THREAD * workers)
    now = work = spent = 0.0
    tasks = 0
    for batch in batches(waiting, fair_share):
        if len(running) == most:
            now = max(now, heapq.heappop(running))
        cost = task_seconds + package_seconds * len(batch)
        now += cost
        spent += cost
        seconds = sum(packages[number].seconds for number, _ in batch)
        end = max(now, heapq.heappop(free)) + seconds
        heapq.heappush(free, end)
        heapq.heappush(running, end)
        work += seconds
        tasks += 1
    total = max(now, *free)
    return Outcome(workers, tasks, total, work / (total * workers), spent / total)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--packages", type=int, default=300_000)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--package-ms", type=float, default=0.8)
    parser.add_argument("--task-ms", type=float, default=6.0)
    options = parser.parse_args()
    packages = random.Random(0).choices(  # noqa: S311 - the same each time
        measured_in(options.run), k=options.packages
    )
    print("| workers | tasks | time | workers busy | coordinator, of a core |\n| --- | --- | --- | --- | --- |")
    for workers in (options.workers, 4 * options.workers, 16 * options.workers, 64 * options.workers):
        outcome = simulate(packages, workers, options.package_ms / 1000, options.task_ms / 1000)
        print("| " + " | ".join(outcome.cells()) + " |")


if __name__ == "__main__":
    main()
