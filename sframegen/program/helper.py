"""Work that may never end, in processes of its own.

A file whose mount does not answer holds whoever touches it, even against SIGKILL. A process that does not answer in time is left
alone: it has no descriptor of ours, so that nobody waits for it, and it ends when it can.
"""

from __future__ import annotations

import ctypes
import errno
import os
import pickle
import select
import signal
import socket
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from sframegen.program.signals import ENDING, signals_held

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

SECONDS = 0.5  # for one answer
PATIENCE = 2.0  # seconds that are waited in vain in all; after that, hardly at all
AT_LEAST = 0.02  # seconds that are always waited
MAX_STUCK = 64  # processes
MAX_MESSAGE = 1 << 16  # bytes; longer ones are sent as a file
MAX_DESCRIPTORS = 2
PR_SET_PDEATHSIG = 1


class NoAnswerError(OSError):
    """It took too long: somebody else's file system does not answer."""

    def __init__(self) -> None:
        super().__init__(errno.ETIMEDOUT, "its file system does not answer")


class Answer(NamedTuple):
    """What a function returns that is called in a helper. It closes nothing."""

    value: Any
    descriptors: Sequence[int] = ()


class Helpers:
    """Calls functions in other processes. Each call names its risk: what is not called again while it does not answer."""

    def __init__(self, *, seconds: float = SECONDS, patience: float = PATIENCE) -> None:
        self._seconds = seconds
        self._patience = patience
        self._idle: _Helper | None = None
        self._stuck: dict[Hashable, tuple[_Helper, float]] = {}  # with the seconds that were waited for it

    def call(self, risk: Hashable, work: Callable[..., Answer], *arguments: object, descriptors: Sequence[int] = ()) -> Answer:
        """Return what `work(*arguments)` returns; it gets the descriptors last. Raises what that raises, and NoAnswerError."""
        if risk in self._stuck and not self.answers(risk):
            raise NoAnswerError
        if len(self._stuck) >= MAX_STUCK:
            raise NoAnswerError
        helper, self._idle = self._idle or _Helper(), None
        began = time.monotonic()
        try:
            helper.ask(work, arguments, descriptors)
            answered = helper.has_answered(max(AT_LEAST, min(self._seconds, self._patience)))
            while not answered and (waited := time.monotonic() - began) < self._seconds and helper.is_running():
                answered = helper.has_answered(AT_LEAST)  # it waits for a CPU, not for a file system
        except BaseException:
            helper.end(waits=False)  # its answer would be taken for that of the next call
            raise
        if not answered:
            self._patience -= waited
            self._stuck[risk] = helper, waited
            raise NoAnswerError
        answer = helper.answer()
        self._keep(helper)
        if isinstance(answer.value, BaseException):
            try:
                raise answer.value
            finally:
                del answer  # its traceback has this frame: a circle would keep what the callers' frames have
        return answer

    def answers(self, risk: Hashable) -> bool:
        """Return True if nothing of that risk waits for an answer. One that came late is thrown away: it is asked again."""
        helper, waited = self._stuck.get(risk, (None, 0.0))
        if helper is None:
            return True
        if not helper.has_answered(0):
            return False
        del self._stuck[risk]
        self._patience += waited  # not in vain: it was only slow
        try:
            for descriptor in helper.answer().descriptors:
                os.close(descriptor)
        except OSError:  # it has died
            return True
        self._keep(helper)
        return True

    def close(self) -> None:
        for helper, _ in self._stuck.values():
            helper.end(waits=False)
        if self._idle:
            self._idle.end()
        self._stuck.clear()
        self._idle = None

    def _keep(self, helper: _Helper) -> None:
        if self._idle is None:
            self._idle = helper
        else:
            helper.end()


@cache
def helpers() -> Helpers:
    """Return those of this process: what does not answer to one part of it, does not answer to the others."""
    return Helpers()


class _Helper:
    """One process."""

    def __init__(self) -> None:
        """Raises OSError."""
        self.pipe, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, signals_held():
            self.pid = os.fork()
            if not self.pid:
                _serve(theirs.fileno())

    def ask(self, work: Callable[..., Answer], arguments: tuple[object, ...], descriptors: Sequence[int]) -> None:
        socket.send_fds(self.pipe, [pickle.dumps((work, arguments))], descriptors)

    def has_answered(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self.pipe, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def is_running(self) -> bool:
        """Return True if it runs, or would if a CPU were free."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].startswith("R")
        except OSError:
            return False

    def answer(self) -> Answer:
        """Raises OSError if the process has died."""
        message, descriptors, _, _ = socket.recv_fds(self.pipe, 2 * MAX_MESSAGE, MAX_DESCRIPTORS)
        if not message:
            self.end()
            raise OSError(errno.EIO, "it became shorter while it was read, or could not be read")
        if message == b"\0":
            with os.fdopen(descriptors[0], "rb") as file:
                file.seek(0)
                message = file.read()
            descriptors = []
        return Answer(pickle.loads(message), descriptors)  # noqa: S301 - of our own process

    def end(self, *, waits: bool = True) -> None:
        """End it. `waits`: it does nothing, so that it can end."""
        self.pipe.close()
        with suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0 if waits else os.WNOHANG)


def _serve(pipe: int) -> NoReturn:
    """The process: does what it is asked until nobody asks any more."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that forked this one
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGBUS):
            signal.signal(number, signal.SIG_DFL)
        _keep_only(pipe)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        with socket.socket(fileno=pipe) as ours:
            while True:
                message, descriptors, _, _ = socket.recv_fds(ours, 2 * MAX_MESSAGE, MAX_DESCRIPTORS)
                if not message:
                    break
                _reply(ours, _done(message, descriptors))
                for descriptor in descriptors:
                    os.close(descriptor)
    finally:
        os._exit(0)


def _keep_only(pipe: int) -> None:
    """Close what others wait for the end of: pipes of our output, events, the kernel program."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    limit = os.sysconf("SC_OPEN_MAX")
    os.closerange(3, pipe)
    os.closerange(pipe + 1, max(limit, nothing + 1))


def _done(message: bytes, descriptors: Sequence[int]) -> Answer:
    try:
        work, arguments = pickle.loads(message)  # noqa: S301 - of our own process
        answer: Answer = work(*arguments, *descriptors)
    except Exception as error:  # noqa: BLE001 - for the process that asked
        error.__traceback__ = error.__context__ = error.__cause__ = None
        return Answer(error)
    return answer


def _reply(pipe: socket.socket, answer: Answer) -> None:
    message = pickle.dumps(answer.value)
    descriptors = answer.descriptors
    if len(message) > MAX_MESSAGE:
        file = os.memfd_create("answer", os.MFD_CLOEXEC)
        with os.fdopen(file, "wb", closefd=False) as writer:
            writer.write(message)
        message, descriptors = b"\0", [file]
    try:
        socket.send_fds(pipe, [message], descriptors)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
