"""Processes forked from this one, each working on one item at a time: what is imported already, or held, is theirs too."""

from __future__ import annotations

import errno
import signal
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from sframegen.program.signals import ENDING, signals_held
from sframegen.program.turn import REFUSALS, turn

I = TypeVar("I")  # noqa: E741 - an item
T = TypeVar("T")

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence
    from multiprocessing.connection import Connection

    Progress = Callable[[int, int], object]  # called with what is done, and what there is to do as far as is known
    Outcome = tuple[int, T | Exception]  # an item's number, and what came of it; an exception is why it is refused

MOST_WORKERS = 1 << 22  # processes that Linux can have
TOO_LITTLE = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)  # for one more process: limits on processes and files, memory


def attempt(work: Callable[[I], T], item: I) -> T | Exception:
    """What `work` returns, or raises to refuse the item."""
    try:
        with turn():
            return work(item)
    except REFUSALS as error:
        error.__context__ = error.__cause__ = None  # here and below: tracebacks keep what is in the frames
        return error.with_traceback(None)


def death(code: int) -> ChildProcessError:
    """What became of an item whose process died with that exit code, as multiprocessing has it."""
    if code == -signal.SIGBUS:
        return ChildProcessError("it became shorter while it was read")
    how = f"was killed by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"ended with status {code}"
    return ChildProcessError(f"the process that worked on it {how}")


def outcomes(work: Callable[[I], T], items: Sequence[I], jobs: int, order: Iterable[int] | None = None) -> Generator[Outcome[T]]:
    """The result of each item, in the order in which they end; `jobs` items at a time, started in that order.

    A process that dies is a ChildProcessError for its item, one that cannot be started an OSError. If the iteration is left early,
    SIGTERM ends the processes, and they are waited for: they may have temporary files to remove.
    """
    from multiprocessing.connection import wait  # noqa: PLC0415 - for those who need it

    waiting = deque(range(len(items)) if order is None else order)
    busy: dict[object, Worker[I, T]] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < jobs:
                try:
                    with signals_held():  # a process is known before it can be left running
                        worker = Worker(work, items, [other.pipe for other in busy.values()])
                        busy[worker.pipe] = worker
                except OSError as error:
                    if error.errno not in TOO_LITTLE:
                        raise
                    if not busy:
                        yield waiting.popleft(), OSError(error.errno, f"cannot start a process: {error.strerror}")
                    jobs = len(busy) or jobs
                else:
                    worker.begin(waiting.popleft())
            for pipe in wait([worker.pipe for worker in busy.values()]) if busy else ():
                worker = busy[pipe]
                number, outcome = worker.number, worker.outcome()
                if waiting and not worker.pipe.closed:
                    worker.begin(waiting.popleft())
                else:
                    worker.end()
                    del busy[pipe]
                yield number, outcome
    finally:
        for worker in busy.values():
            worker.process.terminate()
        for worker in busy.values():
            worker.end()


class Worker(Generic[I, T]):
    """A process that does `work` on one item after the other."""

    def __init__(self, work: Callable[[I], T], items: Sequence[I], others: Sequence[Connection]) -> None:
        from multiprocessing import get_context  # noqa: PLC0415 - for those who need it

        context = get_context("fork")
        self.number = -1
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(work, items, theirs, [*others, self.pipe]))
        self.process.start()
        theirs.close()  # no other copy is left: the pipe ends with the process

    def begin(self, number: int) -> None:
        self.number = number
        with suppress(ConnectionError):  # it has died since its last item: outcome() says so
            self.pipe.send(number)

    def outcome(self) -> T | Exception:
        """Waits for it. If the process has died, that is the outcome, and the pipe is closed."""
        try:
            outcome: T | Exception = self.pipe.recv()
        except (EOFError, OSError):
            self.end()
            return death(self.process.exitcode or 0)
        return outcome

    def end(self) -> None:
        """Waits for its end; it ends when it next asks for an item."""
        self.pipe.close()
        self.process.join()


def _serve(work: Callable[[I], T], items: Sequence[I], pipe: Connection, inherited: Sequence[Connection]) -> None:
    """The process: answers numbers of items with what comes of them, until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that forked this one, which sends SIGTERM
    signal.signal(signal.SIGBUS, signal.SIG_DFL)  # that process says so
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    for other in inherited:
        other.close()
    with suppress(EOFError, ConnectionError):
        while True:
            number = pipe.recv()
            try:
                pipe.send(attempt(work, items[number]))
            except MemoryError as error:  # for the outcome's bytes
                pipe.send(error)
