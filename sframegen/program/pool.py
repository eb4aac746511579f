"""A pool of processes that work on items, and end when no item is left. The caller can take each answer as soon as it is sent."""

from __future__ import annotations

import errno
import os
import select
import signal
from collections import deque
from contextlib import nullcontext
from typing import TYPE_CHECKING, Generic, TypeVar

from sframegen.program.forked import Answer, ForkedProcess
from sframegen.program.signals import signals_held

I = TypeVar("I")  # noqa: E741 - an item

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    Question = tuple[tuple[object, ...], Sequence[int]]  # (values, descriptors) to send to a process

# Why one more process cannot start for now: limits on processes, on memory, or on open files.
EXHAUSTION_ERRORS = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


def ask_with_item(item: I) -> AbstractContextManager[Question]:
    """Give the item itself as the question."""
    return nullcontext(((item,), ()))


class Pool(Generic[I]):
    """A pool of worker processes. If a process dies or cannot be started, the answer for its item is a ChildProcessError."""

    def __init__(
        self,
        start: Callable[[], ForkedProcess],
        max_processes: int,
        make_question: Callable[[I], AbstractContextManager[Question]] = ask_with_item,
    ) -> None:
        """`start`: starts a process, or raises OSError. `make_question`: returns a context manager for an item's question."""
        self._start, self._max_processes, self._make_question = start, max_processes, make_question
        self._waiting: deque[I] = deque()
        self._workers: dict[int, tuple[ForkedProcess, I]] = {}  # (process, its item) by the descriptor of the process' pipe
        self._answered: list[tuple[I, Answer]] = []
        self._epoll = select.epoll()  # of the processes' pipes, and of the next descriptor
        self._answered_event = os.eventfd(0, os.EFD_CLOEXEC)  # readable after `finish`
        self._epoll.register(self._answered_event, select.EPOLLIN)

    def close(self) -> None:
        """End the processes with SIGTERM, and wait for them, because they may have temporary files to remove."""
        for process, _ in self._workers.values():
            process.kill(signal.SIGTERM)
        for descriptor in [*self._workers]:
            self._end(descriptor)
        self._epoll.close()
        os.close(self._answered_event)

    def fileno(self) -> int:
        """Return a descriptor that is readable when `take_answers` has new answers."""
        return self._epoll.fileno()

    @property
    def pending(self) -> int:
        """Return the number of items whose answers `take_answers` has not returned yet."""
        return len(self._waiting) + len(self._workers) + len(self._answered)

    def put(self, *items: I) -> None:
        self._waiting += items
        self._start_some()

    def sort_waiting(self, importance: Callable[[I], float]) -> None:
        """Order the waiting items by importance, the most important first."""
        self._waiting = deque(sorted(self._waiting, key=importance, reverse=True))

    def finish(self, item: I, value: object) -> None:
        """Give an item's answer without asking a process."""
        self._answered.append((item, Answer(value)))
        os.eventfd_write(self._answered_event, 1)

    def take_answers(self, seconds: float | None = 0) -> list[tuple[I, Answer]]:
        """Return the new (item, answer) pairs. `seconds`: how long to wait if there is none yet; None: without limit."""
        for descriptor, _ in self._epoll.poll(seconds):
            if descriptor == self._answered_event:
                os.eventfd_read(descriptor)
                continue
            process, item = self._workers[descriptor]
            try:
                self._answered.append((item, process.answer()))
            except ChildProcessError as error:
                self._answered.append((item, Answer(error.with_traceback(None))))  # a traceback would keep frames' objects alive
            if process.exit_code is None and self._waiting:
                self._begin(process)
            else:
                self._end(descriptor)
        self._start_some()
        answered, self._answered = self._answered, []
        return answered

    def _start_some(self) -> None:
        """Start processes for waiting items, as far as the limits allow."""
        while self._waiting and len(self._workers) < self._max_processes:
            try:
                with signals_held():  # a signal before the registration would leave a process that `close` does not end
                    process = self._start()
                    self._epoll.register(process.pipe, select.EPOLLIN)
                    self._workers[process.pipe.fileno()] = process, self._waiting[0]
            except OSError as error:
                if error.errno not in EXHAUSTION_ERRORS:
                    raise
                if self._workers:
                    return
                self.finish(self._waiting.popleft(), ChildProcessError(f"cannot start a process: {error.strerror}"))
            else:
                self._begin(process)

    def _begin(self, process: ForkedProcess) -> None:
        """Make the process work on the first waiting item."""
        item = self._waiting.popleft()
        self._workers[process.pipe.fileno()] = process, item
        with self._make_question(item) as (values, descriptors):
            process.ask(values, descriptors)

    def _end(self, descriptor: int) -> None:
        process, _ = self._workers.pop(descriptor)
        self._epoll.unregister(descriptor)
        process.end()
