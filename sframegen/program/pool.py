"""Several processes at work on what is put in; what comes of each item is there as it comes."""

from __future__ import annotations

import errno
import os
import select
import signal
from collections import deque
from contextlib import nullcontext
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from sframegen.program.forked import Answer, Forked
from sframegen.program.signals import signals_held

I = TypeVar("I")  # noqa: E741 - an item

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    Question = tuple[tuple[object, ...], Sequence[int]]  # values and descriptors

TOO_LITTLE = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)  # for one more process: limits on processes and files, memory


def itself(item: I) -> AbstractContextManager[Question]:
    return nullcontext(((item,), ()))


class Pool(Generic[I]):
    """A process that dies, or that cannot be started, is a ChildProcessError for its item."""

    def __init__(
        self, start: Callable[[], Forked], most: int, question: Callable[[I], AbstractContextManager[Question]] = itself
    ) -> None:
        """`start`: begins a process, or raises OSError. `most`: processes; there are none while there is nothing to do.

        `question`: what to send for an item, within the context.
        """
        self._start, self._most, self._question = start, most, question
        self._waiting: deque[I] = deque()
        self._workers: dict[int, tuple[Forked, I]] = {}  # by the descriptors of their pipes, with what they work on
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
        for process, _ in self._workers.values():
            process.kill(signal.SIGTERM)
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
        return len(self._waiting) + len(self._workers) + len(self._done)

    def put(self, *items: I) -> None:
        self._waiting += items
        self._start_some()

    def prefer(self, importance: Callable[[I], float]) -> None:
        """Begin with the most important ones, of those that have not begun."""
        self._waiting = deque(sorted(self._waiting, key=importance, reverse=True))

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
            process, item = self._workers[descriptor]
            try:
                self._done.append((item, process.answer()))
            except ChildProcessError as error:
                self._done.append((item, Answer(error.with_traceback(None))))  # it would keep what is in the frames
            if process.code is None and self._waiting:
                self._begin(process)
            else:
                self._end(descriptor)
        self._start_some()
        done, self._done = self._done, []
        return done

    def _start_some(self) -> None:
        """Start processes for what waits."""
        while self._waiting and len(self._workers) < self._most:
            try:
                with signals_held():  # a process is known, and `close` can end it, before it can be left running
                    process = self._start()
                    self._epoll.register(process.pipe, select.EPOLLIN)
                    self._workers[process.pipe.fileno()] = process, self._waiting[0]
            except OSError as error:
                if error.errno not in TOO_LITTLE:
                    raise
                if self._workers:
                    return
                self.finish(self._waiting.popleft(), ChildProcessError(f"cannot start a process: {error.strerror}"))
            else:
                self._begin(process)

    def _begin(self, process: Forked) -> None:
        """Let it work on the item that waits longest."""
        item = self._waiting.popleft()
        self._workers[process.pipe.fileno()] = process, item
        with self._question(item) as (values, descriptors):
            process.ask(values, descriptors)

    def _end(self, descriptor: int) -> None:
        process, _ = self._workers.pop(descriptor)
        self._epoll.unregister(descriptor)
        process.end()
