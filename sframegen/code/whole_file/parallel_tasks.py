"""Shares the work on one file between several processes."""

from __future__ import annotations

from contextlib import ExitStack, closing
from itertools import chain
from typing import TYPE_CHECKING

from sframegen.program.workers import outcomes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import TypeVar

    from sframegen.program.workers import Progress

    T = TypeVar("T")
    U = TypeVar("U")

TASK_BYTES = 1 << 17  # code that a process gets at a time
# Times that one task is done here first: processes that are forked then know of instructions what this one knows.
LEARNING = 3


class ParallelTasks:
    """Tasks of several processes, and their progress."""

    def __init__(self, jobs: int, progress: Progress | None) -> None:
        self.jobs = jobs
        self.progress = progress
        self.done = self.total = 0  # bytes of code
        self.shares = 0

    def share(self, work: Callable[[list[T]], U], items: Iterable[T], size: Callable[[T], int]) -> Iterator[U]:
        """Return the results of `work` for the items, several at a time, in any order."""
        tasks: list[list[T]] = [[]]
        sizes = [0]
        for item in items:
            if sizes[-1] > TASK_BYTES:
                tasks.append([])
                sizes.append(0)
            tasks[-1].append(item)
            sizes[-1] += size(item)
        self.total += sum(sizes)
        alone = 1 if self.shares < LEARNING else 0  # tasks
        self.shares += 1
        some = min(self.jobs, len(tasks) - alone)
        here = ((number, work(task)) for number, task in enumerate(tasks[: alone if some > 1 else None]))
        with ExitStack() as stack:
            there = stack.enter_context(closing(outcomes(work, tasks, some, range(alone, len(tasks))))) if some > 1 else ()
            for number, outcome in chain(here, there):
                if isinstance(outcome, Exception):
                    raise outcome
                self.done += sizes[number]
                if self.progress is not None:
                    self.progress(self.done, self.total)
                yield outcome
