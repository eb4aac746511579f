"""Distributes items to processes forked from this one, which inherit its imported modules and open descriptors."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from sframegen.base.one_file import FILE_ERRORS, only_file_errors

I = TypeVar("I")  # noqa: E741 - an item
T = TypeVar("T")

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    Progress = Callable[[int, int], object]  # called with the amount of work done, and the total as far as it is known
    Outcome = tuple[int, T | Exception]  # (item number, its result, or the exception that says why the item is refused)

MAX_JOBS = 1 << 22  # Linux cannot have more processes


@dataclass(frozen=True)
class JobOptions:
    """The options of a run: how many processes work, and the function called with their progress."""

    jobs: int = 1
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.jobs, int):
            raise TypeError(f"jobs is {self.jobs!r}: give a whole number")
        if not 1 <= self.jobs <= MAX_JOBS:
            raise ValueError(f"jobs is {self.jobs}: at least 1, at most {MAX_JOBS:,}")


def run_or_catch(work: Callable[[I], T], item: I) -> T | Exception:
    """Return the result of `work(item)`, or the exception that it raises to refuse the item."""
    try:
        with only_file_errors():
            return work(item)
    except FILE_ERRORS as error:
        error.__context__ = error.__cause__ = None  # here and below: tracebacks would keep the frames' objects alive
        return error.with_traceback(None)


def run_all(work: Callable[[I], T], items: Sequence[I], jobs: int, order: Iterable[int] | None = None) -> Generator[Outcome[T]]:
    """Yield the outcome of each item as soon as it is known. `order`: the item numbers in the order in which the work begins.

    `jobs` processes work at a time. If one dies or cannot be started, the outcome of its item is a ChildProcessError. All processes
    end with the iteration.
    """
    from sframegen.program.forked import ForkedProcess  # noqa: PLC0415 - here and below: a run with one job does not need it
    from sframegen.program.pool import Pool  # noqa: PLC0415

    pool: Pool[int] = Pool(lambda: ForkedProcess(lambda number: run_or_catch(work, items[number])), jobs)
    with closing(pool):
        pool.put(*(range(len(items)) if order is None else order))
        while pool.pending:
            for number, answer in pool.take_answers(None):
                yield number, answer.value
