"""The engine of one machine: some processes of this program, each with a pipe of its own. Nothing listens."""

from __future__ import annotations

import select
from contextlib import ExitStack
from time import monotonic
from typing import TYPE_CHECKING, Self

from sframegen.fleet.package_process import PackageProcess
from sframegen.fleet.run_directory import run_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sframegen.fleet.engine import Job, NumberedItem, NumberedResult


class OneMachine:
    """A block: at its end, the processes and their temporary files are gone, also those that are at work."""

    def __init__(self, job: Job, processes: int) -> None:
        """`processes`: at most."""
        self._job = job
        self._most = processes

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._directory = stack.enter_context(run_directory())
            self._ends = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def submit(self, waiting: Iterable[NumberedItem]) -> Iterator[NumberedResult]:
        """One package at a time for each process. Raises OSError where a result cannot be written."""
        left = iter(waiting)
        idle: list[PackageProcess] = []
        at_work: dict[PackageProcess, NumberedItem] = {}
        while True:
            while len(at_work) < self._most and (numbered := next(left, None)) is not None:
                process = idle.pop() if idle else self._new_process()
                finished = process.begin(numbered[1])
                if finished is None:
                    at_work[process] = numbered
                else:
                    idle.append(process)
                    yield *numbered, finished
            if not at_work:
                return
            _wait_for_any(at_work)
            for process, numbered in list(at_work.items()):
                finished = process.outcome()
                if finished is not None:
                    del at_work[process]
                    idle.append(process)
                    yield *numbered, finished

    def _new_process(self) -> PackageProcess:
        process = PackageProcess(self._directory, self._job.output, self._job.options)
        self._ends.callback(process.end)
        return process


def _wait_for_any(processes: Iterable[PackageProcess]) -> None:
    """Until one of them has an answer, has died, or has no time left."""
    poll = select.poll()
    for process in processes:
        poll.register(process.pipe, select.POLLIN)
    poll.poll(1000 * max(0.0, min(process.deadline for process in processes) - monotonic()))
