"""Distributes items to processes forked from this one, which share its imported modules and open descriptors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from sframegen.base.one_file import FILE_ERRORS, only_file_errors

I = TypeVar("I")  # noqa: E741 - an item
T = TypeVar("T")

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    Progress = Callable[[int, int], object]  # called with the amount that is done, and the total as far as it is known
    Outcome = tuple[int, T | Exception]  # (item number, its result, or the exception that says why it is refused)

MOST_WORKERS = 1 << 22  # processes that Linux can have


@dataclass(frozen=True)
class Running:
    """Options about the number of processes, and the function called with their progress."""

    jobs: int = 1
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.jobs, int):
            raise TypeError(f"jobs is {self.jobs!r}: give a whole number")
        if not 1 <= self.jobs <= MOST_WORKERS:
            raise ValueError(f"jobs is {self.jobs}: at least 1, at most {MOST_WORKERS:,}")


def attempt(work: Callable[[I], T], item: I) -> T | Exception:
    """Return the result of `work`, or the exception that it raises to refuse the item."""
    try:
        with only_file_errors():
            return work(item)
    except FILE_ERRORS as error:
        error.__context__ = error.__cause__ = None  # here and below: tracebacks keep the frames' objects alive
        return error.with_traceback(None)


def outcomes(work: Callable[[I], T], items: Sequence[I], jobs: int, order: Iterable[int] | None = None) -> Generator[Outcome[T]]:
    """Yield each item's outcome as it ends; `jobs` items are worked on at a time, started in the given order.

    If a process dies or cannot be started, its item's outcome is a ChildProcessError. All processes end with the iteration.
    """
    from sframegen.program.forked import Forked  # noqa: PLC0415 - here and below: for those who need it
    from sframegen.program.pool import Pool  # noqa: PLC0415

    pool: Pool[int] = Pool(lambda: Forked(lambda number: attempt(work, items[number])), jobs)
    with pool:
        pool.put(*(range(len(items)) if order is None else order))
        while pool.pending:
            for number, answer in pool.ready(None):
                yield number, answer.value
