"""Runs functions that may never return, in helper processes.

A file on a mount that does not answer blocks any process that touches it, even against SIGKILL. A helper that does not answer in
time is abandoned: it has no descriptor of ours, so that nobody waits for it, and it ends when it can.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from functools import cache
from typing import TYPE_CHECKING

from sframegen.program import patience
from sframegen.program.forked import Answer, Forked, alive, end_with_parent, hold_only, nowhere
from sframegen.program.forker import Forker

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence


AT_LEAST = 0.02  # seconds to wait in any case
MAX_STUCK = 64  # stuck helper processes


class NoAnswerError(OSError):
    """A helper took too long, probably because a file system does not answer."""

    def __init__(self) -> None:
        super().__init__(errno.ETIMEDOUT, "its file system does not answer")


class Helpers:
    """A caller of functions in helper processes. Each call names its risk; a risk with a stuck call is not called again."""

    def __init__(self) -> None:
        self._in_vain = 0.0  # seconds waited without an answer
        self._forker = Forker(_called, _hold_nothing)
        self._idle: Forked | None = None
        self._stuck: dict[Hashable, tuple[Forked, float]] = {}  # with the seconds that were waited for it

    def call(self, risk: Hashable, work: Callable[..., Answer], *arguments: object, descriptors: Sequence[int] = ()) -> Answer:
        """Return the result of `work(*arguments, *descriptors)`. Raises as that does, and NoAnswerError."""
        for one in tuple(self._stuck):  # of all: who answered late is the next to be asked, and no further process begins
            self.answers(one)
        if risk in self._stuck:
            raise NoAnswerError
        if len(self._stuck) >= MAX_STUCK:
            raise NoAnswerError
        helper, self._idle = self._next(), None
        most = patience.current
        left = most.helpers - self._in_vain
        began = time.monotonic()
        try:
            helper.ask((work, *arguments), descriptors)
            answered = helper.has_answered(max(AT_LEAST, min(most.helper, left)))
            states = b"RD" if left > 0 else b"R"  # D: for a disk, or for a server of NFS, which may never answer
            while not answered and (waited := time.monotonic() - began) < most.busy_helper and _state(helper) in states:
                answered = helper.has_answered(AT_LEAST)
        except BaseException:
            helper.end(signal.SIGKILL, waits=False)  # its answer would be taken for that of the next call
            raise
        if not answered:
            self._in_vain += waited
            self._stuck[risk] = helper, waited
            raise NoAnswerError
        answer = self._answer_of(helper)
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
        self._in_vain -= waited  # not in vain: it was only slow
        try:
            for descriptor in self._answer_of(helper).descriptors:
                os.close(descriptor)
        except OSError:  # it has died
            pass
        return True

    def begin(self) -> Forked:
        """Return the process for the next call, which may start now. It has what this one has now, and so have all after it.

        Raises OSError.
        """
        self._forker.begin()
        return self._next()

    def _next(self) -> Forked:
        """Return the process for the next call. Raises OSError."""
        self._idle = alive(self._idle, self._forker.forked)
        return self._idle

    def close(self) -> None:
        for helper, _ in self._stuck.values():
            helper.end(signal.SIGKILL, waits=False)
        if self._idle:
            self._idle.end(signal.SIGKILL)
        self._forker.close()
        self._stuck.clear()
        self._idle = None

    def _answer_of(self, helper: Forked) -> Answer:
        """Raises OSError if it has died, or its answer cannot be taken; else it can be asked again."""
        try:
            answer = helper.answer()
        except ChildProcessError:
            helper.end()
            raise OSError(errno.EIO, "it was truncated while being read, or could not be read") from None
        except OSError:
            helper.end(signal.SIGKILL)
            raise
        if self._idle is None:
            self._idle = helper
        else:
            helper.end(signal.SIGKILL)
        return answer


@cache
def helpers() -> Helpers:
    """Return the helpers of this process, shared by all parts of it, for which the same risks do not answer."""
    return Helpers()


def _state(process: Forked) -> bytes:
    """Return `R` if it runs, or would if a CPU were free, and other letters as proc(5) has them; `?` if it has gone."""
    try:
        with open(f"/proc/{process.pid}/stat", "rb") as file:  # noqa: PTH123 - without pathlib, which takes longer
            return file.read().rpartition(b") ")[2][:1]
    except OSError:
        return b"?"


# -- in a helper


def _hold_nothing(pipe: int) -> None:
    """Close descriptors whose end others wait for: pipes of our output, events, the kernel program."""
    end_with_parent(only=True)
    nowhere(0, 1, 2)
    hold_only(pipe)


def _called(work: Callable[..., Answer], *arguments: object) -> Answer:
    try:
        return work(*arguments)
    except Exception as error:  # noqa: BLE001 - for the process that asked
        error.__traceback__ = error.__context__ = error.__cause__ = None
        return Answer(error)
