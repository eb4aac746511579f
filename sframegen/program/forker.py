"""A small process that forks others: what is forked from a large one copies all that either of them changes."""

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
    """Starts processes for one work: from this process, or, once it has begun, from a small one that has what this one had then."""

    def __init__(self, work: Work, prepare: Callable[[int], object] = lambda _: None, holds: tuple[int, ...] = ()) -> None:
        """`work`, `prepare`: as for Forked. `holds`: of all that is open when it begins, the descriptors that `work` needs."""
        self._work, self._prepare, self._holds = work, prepare, holds
        self._process: Forked | None = None
        self._released: list[int] = []

    def begin(self) -> None:
        """Start the small process; early, if it is to be one. It has our priority: we wait for it. Raises OSError."""
        if not self.runs:
            forking = _Forking(self._work, self._prepare, self._holds)
            self._process = Forked(forking.answer, forking.prepare)

    def forked(self, seconds: float = 0) -> Forked:
        """Start a process. `seconds`: the most for one task. Raises OSError."""
        return OfForker(self, seconds) if self.runs else Forked(self._work, self._prepare, seconds)

    def fork(self, pipe: socket.socket, seconds: float) -> int:
        """Start a process that serves the pipe, and return its number. Raises OSError."""
        return self._asked(0, seconds, [pipe.fileno()])

    def code_of(self, pid: int) -> int:
        """Return the exit code of one that has ended. Raises OSError."""
        return self._asked(pid, 0, [])

    @property
    def runs(self) -> bool:
        """While it does, the number of a process that it has forked is no other's, up to `code_of` and `release`."""
        if self._process is None:
            return False
        self._process.wait(os.WNOHANG)
        return self._process.code is None

    def release(self, pid: int) -> None:
        """Nobody asks for the exit code of this one, nor sends it a signal any more."""
        self._released.append(pid)

    def close(self) -> None:
        """End the small process. What it has forked is killed."""
        if self._process:
            self._process.end()

    def _asked(self, pid: int, seconds: float, pipes: list[int]) -> int:
        released, self._released = self._released, []
        if self._process is None:
            raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))
        with signals_held():  # an answer that nobody took would be that of the next question
            self._process.ask((released, pid, seconds), pipes)
            try:
                found = self._process.answer().value
            except ChildProcessError as error:
                raise OSError(errno.EAGAIN, str(error)) from None
        if isinstance(found, OSError):
            raise found
        return int(found)


class _Forking:
    """What that process does."""

    def __init__(self, work: Work, prepare: Callable[[int], object], holds: tuple[int, ...]) -> None:
        self._work, self._prepare, self._holds = work, prepare, holds
        self._pipe = -1
        self._released: set[int] = set()

    def prepare(self, pipe: int) -> None:
        self._pipe = pipe
        end_with_parent(only=True)  # with it, all that it has forked
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
        """In the new process: keep no other end of any pipe."""
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
        """The same, but nobody waits here: the Forker does."""
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
            except OSError:  # the Forker has died, and with it this one was killed
                self.code = 1
