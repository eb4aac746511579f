"""Starts a small process that forks others, because forking a large one is slow: pages that either process changes are copied."""

from __future__ import annotations

import errno
import os
import socket
from functools import partial
from typing import TYPE_CHECKING

from sframegen.program.forked import ForkedProcess, die_with_parent, fork_server, keep_only_descriptors
from sframegen.program.signals import signals_held

if TYPE_CHECKING:
    from collections.abc import Callable

    from sframegen.program.forked import Work


class Forker:
    """Starts processes for one kind of work: from this process or, after `begin`, from a small one that was forked then."""

    def __init__(self, work: Work, prepare: Callable[[int], object] = lambda _: None, kept: tuple[int, ...] = ()) -> None:
        """`work`, `prepare`: as for ForkedProcess. `kept`: the descriptors, open at `begin`, that `work` needs."""
        self._work, self._prepare, self._kept = work, prepare, kept
        self._process: ForkedProcess | None = None
        self._released: list[int] = []

    def begin(self) -> None:
        """Start the small process, which gets our current priority. Call this early, to keep it small. Raises OSError."""
        if not self.is_running:
            self.close()  # the pipe to one that has died
            server = _ForkServer(self._work, self._prepare, self._kept)
            self._process = ForkedProcess(server.answer, server.prepare)

    def start_process(self, seconds: float = 0) -> ForkedProcess:
        """Start a process. `seconds`: the limit on a task's CPU time; 0: none. Raises OSError."""
        return ForkerProcess(self, seconds) if self.is_running else ForkedProcess(self._work, self._prepare, seconds)

    def fork(self, pipe: socket.socket, seconds: float) -> int:
        """Start a process that answers questions from the pipe, and return its pid. Raises OSError."""
        return self._ask(0, seconds, [pipe.fileno()])

    def wait_for_exit_code(self, pid: int) -> int:
        """Wait for a forked process, and return its exit code. Raises OSError."""
        return self._ask(pid, 0, [])

    @property
    def is_running(self) -> bool:
        """True if the small process runs; then the pid of a forked process is not reused until it is waited for or released."""
        if self._process is None:
            return False
        self._process.wait(os.WNOHANG)
        return self._process.exit_code is None

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
        with signals_held():  # if a signal ended the wait, the next question would get this answer
            self._process.ask((released, pid, seconds), pipes)
            try:
                result = self._process.answer().value
            except ChildProcessError as error:
                raise OSError(errno.EAGAIN, str(error)) from None
        if isinstance(result, OSError):
            raise result
        return int(result)


class _ForkServer:
    """The work of the small process: it forks other processes and waits for them."""

    def __init__(self, work: Work, prepare: Callable[[int], object], kept: tuple[int, ...]) -> None:
        self._work, self._prepare, self._kept = work, prepare, kept
        self._pipe = -1
        self._released: set[int] = set()

    def prepare(self, pipe: int) -> None:
        self._pipe = pipe
        die_with_parent(ignore_signals=True)  # the processes that it has forked die with it
        keep_only_descriptors(pipe, *self._kept)

    def answer(self, released: list[int], pid: int, seconds: float, *pipes: int) -> int | OSError:
        """Fork a process for the pipe and return its pid; without a pipe, wait for process `pid` and return its exit code."""
        self._released.update(released)
        self._released = {process for process in self._released if not os.waitpid(process, os.WNOHANG)[0]}
        try:
            for pipe in pipes:
                with socket.socket(fileno=os.dup(pipe)) as child_end:
                    return fork_server(child_end, self._work, partial(self._prepare_child, pipe), seconds)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        except OSError as error:
            return OSError(error.errno, error.strerror)

    def _prepare_child(self, received: int, pipe: int) -> None:
        """Prepare the new process: close its copies of the small process' descriptors."""
        os.close(self._pipe)
        os.close(received)
        self._prepare(pipe)


class ForkerProcess(ForkedProcess):
    def __init__(self, forker: Forker, seconds: float) -> None:
        self._forker = forker
        self._start(lambda pipe: forker.fork(pipe, seconds), seconds)

    def kill(self, signal_number: int) -> None:
        if self._forker.is_running:
            super().kill(signal_number)

    def end(self, signal_number: int = 0, *, waits: bool = True) -> None:
        """End the process like ForkedProcess.end, but let the Forker wait for it."""
        del waits
        self.pipe.close()
        self.kill(signal_number)
        if self.exit_code is None:
            self._forker.release(self.pid)
            self.exit_code = 0

    def wait(self, flags: int = 0) -> None:
        del flags
        if self.exit_code is None:
            try:
                self.exit_code = self._forker.wait_for_exit_code(self.pid)
            except OSError:  # the small process has died, which has killed this one
                self.exit_code = 1
