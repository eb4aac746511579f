"""A small process that forks others. Forking a large one is costly: pages that either process changes are copied."""

from __future__ import annotations

import errno
import os
import socket
from functools import partial
from typing import TYPE_CHECKING

from sframegen.program.forked import Forked, end_with_parent, fork, hold_only
from sframegen.program.signals import signals_held

if TYPE_CHECKING:
    from collections.abc import Callable

    from sframegen.program.forked import Work


class Forker:
    """A starter of processes for one kind of work: from this process or, after `begin`, from a small one that copied it then."""

    def __init__(self, work: Work, prepare: Callable[[int], object] = lambda _: None, holds: tuple[int, ...] = ()) -> None:
        """`work`, `prepare`: as for Forked. `holds`: the descriptors, among those open at `begin`, that `work` needs."""
        self._work, self._prepare, self._holds = work, prepare, holds
        self._process: Forked | None = None
        self._released: list[int] = []

    def begin(self) -> None:
        """Start the small process, which should be done early to keep it small. It has our priority. Raises OSError."""
        if not self.runs:
            forking = _Forking(self._work, self._prepare, self._holds)
            self._process = Forked(forking.answer, forking.prepare)

    def forked(self, seconds: float = 0) -> Forked:
        """Start a process. `seconds`: the most for one task. Raises OSError."""
        return OfForker(self, seconds) if self.runs else Forked(self._work, self._prepare, seconds)

    def fork(self, pipe: socket.socket, seconds: float) -> int:
        """Start a process that serves the pipe, and return its number. Raises OSError."""
        return self._ask(0, seconds, [pipe.fileno()])

    def code_of(self, pid: int) -> int:
        """Return the exit code of a forked process that has ended. Raises OSError."""
        return self._ask(pid, 0, [])

    @property
    def runs(self) -> bool:
        """Return True if the small process runs. Until `code_of` or `release`, its forked processes' numbers are not reused."""
        if self._process is None:
            return False
        self._process.wait(os.WNOHANG)
        return self._process.code is None

    def release(self, pid: int) -> None:
        """Release a process whose exit code is not needed, and that will not get further signals."""
        self._released.append(pid)

    def close(self) -> None:
        """End the small process, which kills all processes that it has forked."""
        if self._process:
            self._process.end()

    def _ask(self, pid: int, seconds: float, pipes: list[int]) -> int:
        released, self._released = self._released, []
        if self._process is None:
            raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))
        with signals_held():  # an interrupted wait would leave this answer to the next question
            self._process.ask((released, pid, seconds), pipes)
            try:
                found = self._process.answer().value
            except ChildProcessError as error:
                raise OSError(errno.EAGAIN, str(error)) from None
        if isinstance(found, OSError):
            raise found
        return int(found)


class _Forking:
    """The work of the small process: it forks others, and waits for them."""

    def __init__(self, work: Work, prepare: Callable[[int], object], holds: tuple[int, ...]) -> None:
        self._work, self._prepare, self._holds = work, prepare, holds
        self._pipe = -1
        self._released: set[int] = set()

    def prepare(self, pipe: int) -> None:
        self._pipe = pipe
        end_with_parent(only=True)  # all processes that it has forked die with it
        hold_only(pipe, *self._holds)

    def answer(self, released: list[int], pid: int, seconds: float, *pipes: int) -> int | OSError:
        """Return the number of a new process for the pipe, or, without one, the exit code of that process."""
        self._released.update(released)
        self._released = {one for one in self._released if not os.waitpid(one, os.WNOHANG)[0]}
        try:
            for pipe in pipes:
                with socket.socket(fileno=os.dup(pipe)) as theirs:
                    return fork(theirs, self._work, partial(self._begin, pipe), seconds)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        except OSError as error:
            return OSError(error.errno, error.strerror)

    def _begin(self, given: int, pipe: int) -> None:
        """Prepare the new process: close the small process' pipe ends."""
        os.close(self._pipe)
        os.close(given)
        self._prepare(pipe)


class OfForker(Forked):
    """A process that a Forker has forked."""

    def __init__(self, forker: Forker, seconds: float) -> None:
        self._forker = forker
        self._begin(lambda pipe: forker.fork(pipe, seconds), seconds)

    def kill(self, number: int) -> None:
        if self._forker.runs:
            super().kill(number)

    def end(self, number: int = 0, *, waits: bool = True) -> None:
        """End the process like Forked.end, but leave the waiting to the Forker."""
        del waits
        self.pipe.close()
        self.kill(number)
        if self.code is None:
            self._forker.release(self.pid)
            self.code = 0

    def wait(self, flags: int = 0) -> None:
        del flags
        if self.code is None:
            try:
                self.code = self._forker.code_of(self.pid)
            except OSError:  # the Forker has died, which killed this process
                self.code = 1
