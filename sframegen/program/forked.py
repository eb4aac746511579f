"""Forked processes that do one task after the other: each question gets an answer, and a process' death costs one answer.

Libraries do not fit: loky and concurrent.futures lose all tasks with one process, and their processes outlive this one if it is
killed. A spawned process takes a second until its first answer, a forked one a tenth of that. pebble loses one task, but it forks
beside threads of its own, takes 0.1 seconds to import, pickles data that a fork already has, and does not pass descriptors.
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

    Work = Callable[..., object]  # gets a question's values, then its descriptors; returns an Answer, or the answer's value

MAX_MESSAGE = 1 << 16  # bytes; longer ones are sent as a file
IN_A_FILE = b"\0"  # in place of such a message
MAX_DESCRIPTORS = 2
PR_SET_PDEATHSIG = 1
TOO_LONG = (signal.SIGALRM, signal.SIGPROF)
WAITED = 3  # a task's limit in real time, as a multiple of its limit in CPU time


class Answer(NamedTuple):
    """An answer from another process. The receiver has to close its descriptors."""

    value: Any
    descriptors: Sequence[int] = ()


def death(code: int) -> ChildProcessError:
    """Return the exception for an item whose process died. `code`: its exit code, as in subprocess."""
    if code == -signal.SIGBUS:
        return ChildProcessError("it was truncated while being read")
    how = f"was killed by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"ended with status {code}"
    return DiedError(f"the worker process {how}")


class Forked:
    """A process forked from this one, with its modules and objects, but without the pipes to other such processes."""

    def __init__(self, work: Work, prepare: Callable[[int], object] = lambda _: None, seconds: float = 0) -> None:
        """`prepare`: called first in the process, with the descriptor to keep. `seconds`: a task's CPU time. Raises OSError."""
        self._begin(lambda theirs: fork(theirs, work, prepare, seconds), seconds)

    def _begin(self, begin: Callable[[socket.socket], int], seconds: float) -> None:
        """Start the process. `begin`: starts a process that serves the socket, and returns its number."""
        self.seconds = seconds
        self.code: int | None = None  # the exit code, as in subprocess; None while it runs
        self.pipe, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, signals_held():  # no other copy is left: the pipe ends with the process
            _ALL.add(self)
            try:
                self.pid = begin(theirs)
            except OSError:
                self.pipe.close()
                raise

    def ask(self, question: tuple[object, ...], descriptors: Sequence[int] = ()) -> None:
        with suppress(ConnectionError):  # the process has died: answer() reports it
            send(self.pipe, question, descriptors)

    def has_answered(self, seconds: float) -> bool:
        return is_readable(self.pipe, seconds)

    def answer(self) -> Answer:
        """Wait for the answer and return it. Raises ChildProcessError if the process has died."""
        with suppress(EOFError, ConnectionError):
            return receive(self.pipe)
        self.wait()
        code = self.code or 0
        raise ChildProcessError(f"it took longer than {self.seconds:g} seconds") if -code in TOO_LONG else death(code)

    def kill(self, number: int) -> None:
        if self.code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def end(self, number: int = 0, *, waits: bool = True) -> None:
        """End the process by that signal, or when it next waits for a question. `waits`: wait until it has ended."""
        self.pipe.close()
        self.kill(number)
        self.wait(0 if waits else os.WNOHANG)

    def wait(self, flags: int = 0) -> None:
        """Wait for the process, and set `code`; with WNOHANG, only if it has ended."""
        if self.code is None:
            try:
                pid, status = os.waitpid(self.pid, flags)
            except ChildProcessError:  # another part of the program has waited for it
                self.code = 0
            else:
                self.code = os.waitstatus_to_exitcode(status) if pid else None


_ALL: WeakSet[Forked] = WeakSet()


def alive(process: Forked | None, begin: Callable[[], Forked]) -> Forked:
    """Return the idle process; a new one from `begin` if there is none, or it has died.

    Raises OSError as `begin` does.
    """
    if process and is_readable(process.pipe, 0):
        process.end()
        process = None
    return process or begin()


def send(pipe: socket.socket, value: object, descriptors: Sequence[int] = ()) -> None:
    """Send a value and descriptors to the other end. Raises ConnectionError."""
    message = pickle.dumps(value)
    if len(message) <= MAX_MESSAGE:
        socket.send_fds(pipe, [message], descriptors)
        return
    with os.fdopen(os.memfd_create("message", os.MFD_CLOEXEC), "wb") as file:
        file.write(message)
        file.flush()
        socket.send_fds(pipe, [IN_A_FILE], [file.fileno(), *descriptors])


def receive(pipe: socket.socket) -> Answer:
    """Wait for a message and return it. Raises EOFError or ConnectionError at the other end's close, OSError for too many files."""
    message, descriptors, flags, _ = socket.recv_fds(pipe, MAX_MESSAGE, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    if flags & socket.MSG_CTRUNC:  # the kernel has dropped what could not be opened here
        for descriptor in descriptors:
            os.close(descriptor)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    if not message:
        raise EOFError
    if message == IN_A_FILE:
        with os.fdopen(descriptors.pop(0), "rb") as file:
            file.seek(0)
            message = file.read()
    return Answer(pickle.loads(message), descriptors)  # noqa: S301 - of our own process


def is_readable(pipe: socket.socket, seconds: float) -> bool:
    """Return True if a message or the end of the connection has come."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


# -- in the process


def serve(pipe: socket.socket, work: Work, seconds: float = 0) -> None:
    """Answer questions until nobody asks any more."""
    with suppress(EOFError, ConnectionError):
        while True:
            question, given = receive(pipe)
            _end_after(seconds)
            found = work(*question, *given)
            value, descriptors = found if isinstance(found, Answer) else Answer(found)
            _end_after(0)
            try:
                send(pipe, value, descriptors)
            except MemoryError as error:  # for the answer's bytes
                send(pipe, error)
            for descriptor in (*given, *descriptors):
                os.close(descriptor)


def end_with_parent(*, only: bool = False) -> None:
    """Make this process die with its parent, even in the middle of a task, which must not need any clean-up.

    `only`: ignore signals that end a whole group or session; the parent may need this process to write its results.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN if only else signal.SIG_DFL)


def hold_only(*descriptors: int) -> None:
    """Close all other descriptors but the standard streams: thousands of files, and pipes whose ends others wait for."""
    first = 3
    for descriptor in sorted(descriptors):
        os.closerange(first, descriptor)
        first = max(first, descriptor + 1)
    os.closerange(first, max(os.sysconf("SC_OPEN_MAX"), first))


def nowhere(*streams: int) -> None:
    """Connect these streams to /dev/null."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in streams:
        os.dup2(nothing, stream)
    if nothing not in streams:
        os.close(nothing)


def fork(pipe: socket.socket, work: Work, prepare: Callable[[int], object], seconds: float) -> int:
    """Start a process that serves the pipe, and return its number. Raises OSError."""
    parent = os.getpid()

    def prepare_here(fileno: int) -> None:
        prepare(fileno)
        if os.getppid() != parent:  # it died before we asked for the signal of its death
            sys.exit(1)

    pid = os.fork()
    if not pid:
        _be(pipe, work, prepare_here, seconds)
    return pid


def _end_after(seconds: float) -> None:
    """End this process after that much CPU time, or WAITED times as much real time; 0: remove the limit."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, seconds * WAITED)


def _be(pipe: socket.socket, work: Work, prepare: Callable[[int], object], seconds: float) -> NoReturn:
    status = 1
    try:
        gc.freeze()  # a collection would copy all memory that is shared with that process
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that forked this one
        for number in (signal.SIGBUS, *(TOO_LONG if seconds else ())):  # that process says so
            signal.signal(number, signal.SIG_DFL)
        for other in _ALL:
            other.pipe.close()
        nowhere(0)
        prepare(pipe.fileno())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*ENDING, *TOO_LONG))
        serve(pipe, work, seconds)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except MemoryError:
        pass
    except Exception:  # noqa: BLE001 - whatever it is, this process does not go on as the one that forked it
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def limit_memory(most: int) -> None:
    """Limit this process' memory to its current size plus `most` bytes, at most its current limit, and disable core files."""
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - without pathlib, which takes longer
        pages = int(file.read().split()[0])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit, allowed = pages * resource.getpagesize() + most, resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (limit if allowed == resource.RLIM_INFINITY else min(limit, allowed),) * 2)
