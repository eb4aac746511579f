"""Processes forked from this one, each working on one file at a time: what is imported already is theirs too."""

from __future__ import annotations

import signal
from collections import deque
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from sframegen.cli.several import attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection

    from sframegen.cli.several import Outcome

T = TypeVar("T")

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LARGE = 0.1  # of one process' share: such a file, begun last, would keep one process at work and the others waiting


def outcomes(work: Callable[[str], T], files: Sequence[str], jobs: int) -> Iterator[Outcome[T]]:
    """What comes of each file, in the order in which it comes; `jobs` files at a time, large ones first.

    A process that dies is a ChildProcessError for its file. If the iteration is left early, SIGTERM ends the processes, and they
    are waited for: they may have temporary files to remove.
    """
    waiting = deque(by_size(files, jobs))
    busy: dict[object, Worker[T]] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < jobs:
                try:
                    with _signals_held():  # a process is known before it can be left behind
                        worker = Worker(work, files, [other.pipe for other in busy.values()])
                        busy[worker.pipe] = worker
                except BlockingIOError:  # the user's limit on processes
                    if not busy:
                        raise
                    jobs = len(busy)
                else:
                    worker.begin(waiting.popleft())
            for pipe in wait([worker.pipe for worker in busy.values()]):
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


class Worker(Generic[T]):
    """A process that does `work` on one file after the other."""

    def __init__(self, work: Callable[[str], T], files: Sequence[str], others: Sequence[Connection]) -> None:
        context = get_context("fork")
        self.number = -1
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(work, files, theirs, [*others, self.pipe]))
        self.process.start()
        theirs.close()  # no other copy is left: the pipe ends with the process

    def begin(self, number: int) -> None:
        self.number = number
        with suppress(ConnectionError):  # it has died since its last file: outcome() says so
            self.pipe.send(number)

    def outcome(self) -> T | Exception:
        """Waits for it. If the process has died, that is the outcome, and the pipe is closed."""
        try:
            outcome: T | Exception = self.pipe.recv()
        except (EOFError, OSError):
            self.end()
            code = self.process.exitcode or 0
            how = f"was killed by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"ended with status {code}"
            return ChildProcessError(f"the process that worked on it {how}")
        return outcome

    def end(self) -> None:
        """Waits for its end; it ends when it next asks for a file."""
        self.pipe.close()
        self.process.join()


def _serve(work: Callable[[str], T], files: Sequence[str], pipe: Connection, inherited: Sequence[Connection]) -> None:
    """The process: answers numbers of files with what comes of them, until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that forked this one, which sends SIGTERM
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    for other in inherited:
        other.close()
    with suppress(EOFError, ConnectionError):
        while True:
            pipe.send(attempt(work, files[pipe.recv()]))


@contextmanager
def _signals_held() -> Iterator[None]:
    """Signals wait for the end of the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def by_size(files: Sequence[str], jobs: int) -> list[int]:
    """Numbers of the files: large ones first, the largest before all, then the others in their order."""
    sizes = [_size(file) for file in files]
    small = LARGE * sum(sizes) / jobs
    return sorted(range(len(files)), key=lambda number: -max(sizes[number], small))


def _size(file: str) -> int:
    try:
        return Path(file).stat().st_size
    except OSError:
        return 0
