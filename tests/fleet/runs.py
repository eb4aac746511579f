"""Runs, and what they leave in their output directory."""

from __future__ import annotations

import os
import select
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sframegen.fleet.fleet_run import FleetRun
from sframegen.fleet.one_machine import OneMachine
from sframegen.fleet.run_options import RunOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PACKAGES = 12  # of the fixture `pool`
TIMES = ("seconds", "seconds_fetching", "seconds_reading", "seconds_converting", "seconds_writing")
OF_THE_PROCESS = ("peak_memory_bytes", "worker")
ONE_PROCESS = partial(OneMachine, processes=1)


class Watched:
    def __init__(self) -> None:
        self.findings: list[str] = []
        self.steps: list[tuple[int, int]] = []

    def finding(self, message: str) -> None:
        self.findings.append(message)

    def progress(self, done: int, total: int) -> None:
        self.steps.append((done, total))


def run(
    source: object, out: Path, options: RunOptions | None = None, engine: Callable[..., Any] = ONE_PROCESS
) -> tuple[FleetRun, Watched]:
    watched = Watched()
    fleet = FleetRun([str(source)], str(out), options or RunOptions(), watched.finding, watched.progress)
    fleet.run(engine)
    return fleet, watched


def list_of(url: str, directory: Path) -> Path:
    """A list of the packages of `pool` on a server."""
    (directory / "list").write_text("".join(f"{url}/{number:02}.tar\n" for number in range(PACKAGES)))
    return directory / "list"


def rows(out: Path, name: str) -> list[dict[str, Any]]:
    """A table without times."""
    from pyarrow import parquet  # noqa: PLC0415

    table = parquet.read_table(out / f"{name}.parquet").to_pylist()
    return [{key: value for key, value in row.items() if key not in (*TIMES, *OF_THE_PROCESS)} for row in table]


def processes_below(pid: int) -> list[int]:
    """All that a process has started, and those have."""
    children = [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]
    return children + [one for child in children for one in processes_below(child)]


def wait_for_the_end(descriptors: Iterable[int]) -> None:
    """Of processes, by descriptors from `os.pidfd_open`, which are closed."""
    for descriptor in descriptors:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll()
        os.close(descriptor)


def sockets_of(pids: Iterable[int]) -> set[str]:
    """The numbers (inodes) of their sockets, as root and their user see them."""
    found = set()
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            links = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
            found |= {link[8:-1] for link in links if link.startswith("socket:[")}
    return found
