"""The engine for one machine: gives packages to processes through pipes, because other users could connect to open ports."""

from __future__ import annotations

import select
import shutil
import tempfile
from time import monotonic
from typing import TYPE_CHECKING, Self

from sframegen.fleet.package_process import PackageProcess
from sframegen.program.signals import signals_held

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sframegen.fleet.run_options import Job, NumberedItem, NumberedResult


class OneMachine:
    """A context manager that ends all its processes, even busy ones, and removes their temporary files."""

    def __init__(self, job: Job, processes: int) -> None:
        """`processes`: the maximum number of processes."""
        self._job = job
        self._max_processes = processes
        self._processes: list[PackageProcess] = []

    def __enter__(self) -> Self:
        self._directory = tempfile.mkdtemp(prefix="sframegen-fleet-")
        return self

    def __exit__(self, *_: object) -> None:
        with signals_held():
            for process in self._processes:
                process.end()
            shutil.rmtree(self._directory, ignore_errors=True)

    def submit(self, pending: Iterable[NumberedItem]) -> Iterator[NumberedResult]:
        """Give each process one package at a time, and yield the results. Raises OSError if a result cannot be written."""
        not_started = iter(pending)
        idle: list[PackageProcess] = []
        at_work: dict[PackageProcess, NumberedItem] = {}
        while True:
            while len(at_work) < self._max_processes and (numbered := next(not_started, None)) is not None:
                process = idle.pop() if idle else self._new_process()
                _, item = numbered
                start_failure = process.begin(item)
                if start_failure is None:
                    at_work[process] = numbered
                else:
                    idle.append(process)
                    yield *numbered, start_failure
            if not at_work:
                return
            _wait_for_any(at_work)
            for process, numbered in list(at_work.items()):
                finished = process.poll_result()
                if finished is not None:
                    del at_work[process]
                    idle.append(process)
                    yield *numbered, finished

    def _new_process(self) -> PackageProcess:
        process = PackageProcess(self._directory, self._job.output, self._job.options)
        self._processes.append(process)
        return process


def _wait_for_any(processes: Iterable[PackageProcess]) -> None:
    """Wait until one of the processes has sent a result, has died, or has reached its deadline."""
    poll = select.poll()
    for process in processes:
        poll.register(process.pipe, select.POLLIN)
    poll.poll(1000 * max(0.0, min(process.deadline for process in processes) - monotonic()))
