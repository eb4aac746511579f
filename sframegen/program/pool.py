"""Several processes at work on what is put in; what comes of each item is there as it comes."""

from __future__ import annotations

import errno
import os
import select
import signal
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from sframegen.program.forked import Answer, Forked
from sframegen.program.signals import signals_held

I = TypeVar("I")  # noqa: E741 - an item

if TYPE_CHECKING:
    from collections.abc import Callable

TOO_LITTLE = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)  # for one more process: limits on processes and files, memory


class Pool(ABC, Generic[I]):
    """A process that dies, or that cannot be started, is a ChildProcessError for its item."""

    def __init__(self, most: int, seconds: float = 0) -> None:
        """`most`: processes; there are none while there is nothing to do. `seconds`: the most for one item."""
        self._most = most
        self._seconds = seconds
        self._items: dict[int, I] = {}  # that have no outcome yet, by number
        self._count = 0  # of all
        self._waiting: deque[int] = deque()
        self._workers: dict[int, Worker] = {}  # by the descriptors of their pipes
        self._done: list[tuple[I, Answer]] = []
        self._epoll = select.epoll()
        self._some_done = os.eventfd(0, os.EFD_CLOEXEC)
        self._epoll.register(self._some_done, select.EPOLLIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """SIGTERM ends the processes, and they are waited for: they may have temporary files to remove."""
        for worker in self._workers.values():
            worker.process.kill(signal.SIGTERM)
        for descriptor in [*self._workers]:
            self._end(descriptor)
        self._epoll.close()
        os.close(self._some_done)

    def fileno(self) -> int:
        """A descriptor that is readable when `ready` has something new."""
        return self._epoll.fileno()

    @property
    def pending(self) -> int:
        """How many items have no outcome yet that `ready` has returned."""
        return len(self._items) + len(self._done)

    def put(self, *items: I) -> None:
        numbers = range(self._count, self._count + len(items))
        self._items.update(zip(numbers, items, strict=True))
        self._waiting += numbers
        self._count += len(items)
        self._start()

    def prefer(self, importance: Callable[[I], float]) -> None:
        """Begin with the most important ones, of those that have not begun."""
        self._waiting = deque(sorted(self._waiting, key=lambda number: -importance(self._items[number])))

    def finish(self, item: I, value: object) -> None:
        """That is the outcome, without any process."""
        self._done.append((item, Answer(value)))
        os.eventfd_write(self._some_done, 1)

    def ready(self, seconds: float | None = 0) -> list[tuple[I, Answer]]:
        """Return what has come since the last call. `seconds`: to wait for some; None: as long as it takes."""
        for descriptor, _ in self._epoll.poll(seconds):
            if descriptor == self._some_done:
                os.eventfd_read(descriptor)
                continue
            worker = self._workers[descriptor]
            item = self._items.pop(worker.number)
            try:
                self._done.append((item, worker.process.answer()))
            except ChildProcessError as error:
                self._done.append((item, Answer(error.with_traceback(None))))  # it would keep what is in the frames
            if worker.process.code is None and self._waiting and self._waiting[0] < worker.known:
                self._begin(worker)
            else:
                self._end(descriptor)
        self._start()
        done, self._done = self._done, []
        return done

    def _start(self) -> None:
        """Fork processes for what waits."""
        while self._waiting and len(self._workers) < self._most:
            try:
                with signals_held():  # a process is known before it can be left running
                    worker = self._fork()
                    self._workers[worker.process.pipe.fileno()] = worker
            except OSError as error:
                if error.errno not in TOO_LITTLE:
                    raise
                if self._workers:
                    return
                item = self._items.pop(self._waiting.popleft())
                self.finish(item, ChildProcessError(f"cannot start a process: {error.strerror}"))
            else:
                self._epoll.register(worker.process.pipe, select.EPOLLIN)
                self._begin(worker)

    def _begin(self, worker: Worker) -> None:
        """Let it work on the item that waits longest."""
        worker.number = self._waiting.popleft()
        self._ask(worker)

    @abstractmethod
    def _fork(self) -> Worker:
        """Start a process. Raises OSError."""

    @abstractmethod
    def _ask(self, worker: Worker) -> None:
        """Have it work on the item of its number."""

    def _end(self, descriptor: int) -> None:
        worker = self._workers.pop(descriptor)
        self._epoll.unregister(descriptor)
        worker.process.end()


class ForkedPool(Pool[I], Generic[I]):
    """A Pool whose processes are forked from this one: they have the items that were put in before."""

    def __init__(
        self, work: Callable[[I], object], most: int, prepare: Callable[[int], object] = lambda _: None, seconds: float = 0
    ) -> None:
        """`work`, `prepare`: as for Forked."""
        super().__init__(most, seconds)
        self._work, self._prepare = work, prepare

    def _fork(self) -> Worker:
        return Worker(Forked(lambda number: self._work(self._items[number]), self._prepare, self._seconds), self._count)

    def _ask(self, worker: Worker) -> None:
        worker.process.ask((worker.number,))


@dataclass
class Worker:
    """A process that can do the `known` first items."""

    process: Forked
    known: int
    number: int = -1  # of the item that it works on
