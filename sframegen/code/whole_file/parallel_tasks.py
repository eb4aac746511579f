"""Divides the code of a file into tasks, runs them in several processes, and reports their progress."""

from __future__ import annotations

from contextlib import ExitStack, closing
from itertools import chain
from typing import TYPE_CHECKING

from sframegen.program.workers import run_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import TypeVar

    from sframegen.program.workers import Progress

    T = TypeVar("T")
    U = TypeVar("U")

TASK_BYTES = 1 << 17  # of code that a process gets at a time
# In this many runs, this process does one task before it forks others, which then inherit the meanings of common instructions.
RUNS_BEGUN_HERE = 3


class ParallelTasks:
    """Runs tasks. `done`, `total`: bytes of code of the tasks that are finished, and of all given so far."""

    def __init__(self, jobs: int, progress: Progress | None) -> None:
        self.jobs = jobs
        self.progress = progress
        self.done = self.total = 0
        self.runs = 0

    def run(self, work: Callable[[list[T]], U], items: Iterable[T], size: Callable[[T], int]) -> Iterator[U]:
        """Yield the results of `work` for lists of items, in any order. `size`: bytes of code of an item."""
        tasks: list[list[T]] = [[]]
        sizes = [0]
        for item in items:
            if sizes[-1] > TASK_BYTES:
                tasks.append([])
                sizes.append(0)
            tasks[-1].append(item)
            sizes[-1] += size(item)
        self.total += sum(sizes)
        tasks_done_here = 1 if self.runs < RUNS_BEGUN_HERE else 0
        self.runs += 1
        processes = min(self.jobs, len(tasks) - tasks_done_here)
        own_results = ((number, work(task)) for number, task in enumerate(tasks[: tasks_done_here if processes > 1 else None]))
        with ExitStack() as stack:
            other_results = (
                stack.enter_context(closing(run_all(work, tasks, processes, range(tasks_done_here, len(tasks)))))
                if processes > 1
                else ()
            )
            for number, outcome in chain(own_results, other_results):
                if isinstance(outcome, Exception):
                    raise outcome
                self.done += sizes[number]
                if self.progress is not None:
                    self.progress(self.done, self.total)
                yield outcome
