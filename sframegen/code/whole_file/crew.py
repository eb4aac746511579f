"""The processes that share the work on one file."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from sframegen.program.workers import outcomes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import TypeVar

    from sframegen.program.workers import Progress

    T = TypeVar("T")
    U = TypeVar("U")

TASK_BYTES = 1 << 17  # code that a process gets at a time


class Crew:
    """The processes, and the progress of their work."""

    def __init__(self, jobs: int, progress: Progress | None) -> None:
        self.jobs = jobs
        self.progress = progress
        self.done = self.total = 0  # bytes

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
        some = min(self.jobs, len(tasks))
        here = ((number, work(task)) for number, task in enumerate(tasks))
        with ExitStack() as stack:
            found = stack.enter_context(closing(outcomes(work, tasks, some))) if some > 1 else here
            for number, outcome in found:
                if isinstance(outcome, Exception):
                    raise outcome
                self.done += sizes[number]
                if self.progress is not None:
                    self.progress(self.done, self.total)
                yield outcome
