"""Processes forked from this one, each working on one item at a time: what is imported already, or held, is theirs too."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from sframegen.base.one_file import REFUSALS, only_refusals

I = TypeVar("I")  # noqa: E741 - an item
T = TypeVar("T")

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    Progress = Callable[[int, int], object]  # called with what is done, and what there is to do as far as is known
    Outcome = tuple[int, T | Exception]  # an item's number, and what came of it; an exception is why it is refused

MOST_WORKERS = 1 << 22  # processes that Linux can have


def attempt(work: Callable[[I], T], item: I) -> T | Exception:
    """What `work` returns, or raises to refuse the item."""
    try:
        with only_refusals():
            return work(item)
    except REFUSALS as error:
        error.__context__ = error.__cause__ = None  # here and below: tracebacks keep what is in the frames
        return error.with_traceback(None)


def outcomes(work: Callable[[I], T], items: Sequence[I], jobs: int, order: Iterable[int] | None = None) -> Generator[Outcome[T]]:
    """The result of each item, in the order in which they end; `jobs` items at a time, started in that order.

    A process that dies, or cannot be started, is a ChildProcessError for its item. If the iteration ends early, they do.
    """
    from sframegen.program.forked import Forked  # noqa: PLC0415 - here and below: for those who need it
    from sframegen.program.pool import Pool  # noqa: PLC0415

    pool: Pool[int] = Pool(lambda: Forked(lambda number: attempt(work, items[number])), jobs)
    with pool:
        pool.put(*(range(len(items)) if order is None else order))
        while pool.pending:
            for number, answer in pool.ready(None):
                yield number, answer.value
