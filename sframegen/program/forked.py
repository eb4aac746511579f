"""Forks processes that answer one question after the other. If such a process dies, only the answer to its question is lost.

No library does that. loky and concurrent.futures lose all tasks with one process, and their processes outlive this one if it is
killed. A spawned process takes a second until its first answer, a forked one a tenth of that. pebble loses one task, but it forks
while its own threads run, takes 0.1 seconds to import, pickles data that a fork already has, and does not pass descriptors.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import pickle
import resource
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn
from weakref import WeakSet

from sframegen.base.one_file import DiedError
from sframegen.program.signals import ENDING, signals_held

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Work = Callable[..., object]  # takes a question's values, then its descriptors; returns an Answer, or only the answer's value

MAX_MESSAGE = 1 << 16  # bytes; longer messages are sent in a file
FILE_MARKER = b"\0"  # sent instead of a message that is in a file
MAX_DESCRIPTORS = 2
PR_SET_PDEATHSIG = 1
TIMEOUT_SIGNALS = (signal.SIGALRM, signal.SIGPROF)
REAL_TIME_FACTOR = 3  # a task's limit in real time is this multiple of its limit in CPU time


class Answer(NamedTuple):
    """An answer from another process. The receiver has to close its descriptors."""

    value: Any
    descriptors: Sequence[int] = ()


def build_death_error(code: int) -> ChildProcessError:
    """Return the exception for an item whose process died. `code`: the exit code; negative for a signal, as in subprocess."""
    if code == -signal.SIGBUS:
        return ChildProcessError("it was truncated while being read")
    how = f"was killed by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"ended with status {code}"
    return DiedError(f"the worker process {how}")


class ForkedProcess:
    """A process forked from this one, with its modules and objects, but without its pipes to other forked processes."""

    def __init__(self, work: Work, prepare: Callable[[int], object] = lambda _: None, seconds: float = 0) -> None:
        """`prepare`: called first in the process, with the descriptor to keep. `seconds`: a task's CPU time. Raises OSError."""
        self._start(lambda child_end: fork_server(child_end, work, prepare, seconds), seconds)

    def _start(self, start: Callable[[socket.socket], int], seconds: float) -> None:
        """Start the process. `start`: starts a process that answers questions from the socket, and returns its pid."""
        self.seconds = seconds
        self.exit_code: int | None = None  # as in subprocess: negative for a signal; None while it runs
        self.pipe, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with child_end, signals_held():  # closed here, so that the pipe breaks when the process dies
            _RUNNING.add(self)
            try:
                self.pid = start(child_end)
            except OSError:
                self.pipe.close()
                raise

    def ask(self, question: tuple[object, ...], descriptors: Sequence[int] = ()) -> None:
        with suppress(ConnectionError):  # if the process has died, answer() reports it
            send(self.pipe, question, descriptors)

    def has_answered(self, seconds: float) -> bool:
        return is_readable(self.pipe, seconds)

    def answer(self) -> Answer:
        """Wait for the answer and return it. Raises ChildProcessError if the process has died."""
        with suppress(EOFError, ConnectionError):
            return receive(self.pipe)
        self.wait()
        code = self.exit_code or 0
        if -code in TIMEOUT_SIGNALS:
            raise ChildProcessError(f"it took longer than {self.seconds:g} seconds")
        raise build_death_error(code)

    def kill(self, signal_number: int) -> None:
        if self.exit_code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal_number)

    def end(self, signal_number: int = 0, *, waits: bool = True) -> None:
        """End the process with a signal, or (0) when it next waits for a question. `waits`: wait until it has ended."""
        self.pipe.close()
        self.kill(signal_number)
        self.wait(0 if waits else os.WNOHANG)

    def wait(self, flags: int = 0) -> None:
        """Wait for the process to end, and set `exit_code`; with WNOHANG, set it only if the process has already ended."""
        if self.exit_code is None:
            try:
                pid, status = os.waitpid(self.pid, flags)
                self.exit_code = os.waitstatus_to_exitcode(status) if pid else None
            except ChildProcessError:  # another part of the program has waited for it
                self.exit_code = 0


_RUNNING: WeakSet[ForkedProcess] = WeakSet()


def reuse_or_start(idle: ForkedProcess | None, start: Callable[[], ForkedProcess]) -> ForkedProcess:
    """Return the idle process or, if there is none or it has died, a new one from `start`. Raises OSError as `start` does."""
    if idle and is_readable(idle.pipe, 0):  # the end of the connection
        idle.end()
        idle = None
    return idle or start()


def send(pipe: socket.socket, value: object, descriptors: Sequence[int] = ()) -> None:
    """Send a value and descriptors to the other end. Raises ConnectionError."""
    message = pickle.dumps(value)
    if len(message) <= MAX_MESSAGE:
        socket.send_fds(pipe, [message], descriptors)
        return
    with os.fdopen(os.memfd_create("message", os.MFD_CLOEXEC), "wb") as file:
        file.write(message)
        file.flush()
        socket.send_fds(pipe, [FILE_MARKER], [file.fileno(), *descriptors])


def receive(pipe: socket.socket) -> Answer:
    """Wait for a message. Raises EOFError or ConnectionError if the other end is closed, OSError for too many open files."""
    message, descriptors, flags, _ = socket.recv_fds(pipe, MAX_MESSAGE, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    if flags & socket.MSG_CTRUNC:  # the kernel has dropped the descriptors that could not be opened here
        for descriptor in descriptors:
            os.close(descriptor)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    if not message:
        raise EOFError
    if message == FILE_MARKER:
        with os.fdopen(descriptors.pop(0), "rb") as file:
            file.seek(0)
            message = file.read()
    return Answer(pickle.loads(message), descriptors)  # noqa: S301 - our own process has sent it


def is_readable(pipe: socket.socket, seconds: float) -> bool:
    """Return True if a message, or the end of the connection, arrives within that time."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


# -- in the forked process


def serve(pipe: socket.socket, work: Work, seconds: float = 0) -> None:
    """Answer the questions that come through the pipe until its other end is closed."""
    with suppress(EOFError, ConnectionError):
        while True:
            question, received = receive(pipe)
            _limit_time(seconds)
            result = work(*question, *received)
            value, descriptors = result if isinstance(result, Answer) else Answer(result)
            _limit_time(0)
            try:
                send(pipe, value, descriptors)
            except MemoryError as error:  # there is too little memory to encode the answer
                send(pipe, error)
            for descriptor in (*received, *descriptors):
                os.close(descriptor)


def die_with_parent(*, ignore_signals: bool = False) -> None:
    """Make this process die with its parent, even in the middle of a task. Tasks must therefore not need any clean-up.

    `ignore_signals`: ignore signals that end a whole group or session; the parent may need this process to write its results.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN if ignore_signals else signal.SIG_DFL)


def keep_only_descriptors(*descriptors: int) -> None:
    """Close all descriptors but these and the standard streams, because others wait for the end of pipes that would stay open."""
    first = 3
    for descriptor in sorted(descriptors):
        os.closerange(first, descriptor)
        first = max(first, descriptor + 1)
    os.closerange(first, max(os.sysconf("SC_OPEN_MAX"), first))


def redirect_to_null(*streams: int) -> None:
    """Connect these streams to /dev/null."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in streams:
        os.dup2(null, stream)
    if null not in streams:
        os.close(null)


def fork_server(pipe: socket.socket, work: Work, prepare: Callable[[int], object], seconds: float) -> int:
    """Fork a process that answers questions from the pipe, and return its pid. Raises OSError."""
    parent = os.getpid()

    def prepare_here(fileno: int) -> None:
        prepare(fileno)
        if os.getppid() != parent:  # the parent died before `prepare` asked the kernel for a signal at its death
            sys.exit(1)

    pid = os.fork()
    if not pid:
        _run_child(pipe, work, prepare_here, seconds)
    return pid


def _limit_time(seconds: float) -> None:
    """End this process after that much CPU time, or REAL_TIME_FACTOR times as much real time; 0 removes the limit."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, seconds * REAL_TIME_FACTOR)


def _run_child(pipe: socket.socket, work: Work, prepare: Callable[[int], object], seconds: float) -> NoReturn:
    status = 1
    try:
        gc.freeze()  # a collection would write to, and so copy, all memory that is shared with the parent
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
        for number in (signal.SIGBUS, *(TIMEOUT_SIGNALS if seconds else ())):  # the parent reports the death by one of them
            signal.signal(number, signal.SIG_DFL)
        for other in _RUNNING:
            other.pipe.close()
        redirect_to_null(0)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGCONT)  # if it is stopped, it would not see the end of the pipe
        prepare(pipe.fileno())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*ENDING, *TIMEOUT_SIGNALS))
        serve(pipe, work, seconds)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except MemoryError:
        pass
    except Exception:  # noqa: BLE001 - this process must never continue with the parent's code
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def limit_memory(most: int) -> None:
    """Limit this process' memory to its current size plus `most` bytes (or to its current limit, if lower); disable core files."""
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - without pathlib, which takes longer
        pages = int(file.read().split()[0])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit, allowed = pages * resource.getpagesize() + most, resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (limit if allowed == resource.RLIM_INFINITY else min(limit, allowed),) * 2)
