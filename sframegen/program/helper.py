"""Runs functions that may never return in helper processes.

A file on a mount that does not answer blocks any process that touches it, and even SIGKILL does not end that process. A helper that
does not answer in time is abandoned. It has no descriptors of ours, so that nobody waits for them, and it ends when it can.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

from sframegen.program import time_limits
from sframegen.program.forked import Answer, ForkedProcess, die_with_parent, keep_only_descriptors, redirect_to_null, reuse_or_start
from sframegen.program.forker import Forker

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

MIN_WAIT = 0.02  # seconds to wait for each answer even after the time of all helpers is used up
MAX_STUCK = 64  # helper processes that do not answer; with more of them, no function is called


class NoAnswerError(OSError):
    """A helper did not answer in time, probably because a file system does not answer."""

    def __init__(self) -> None:
        super().__init__(errno.ETIMEDOUT, "its file system does not answer")


class Helpers:
    """Calls functions in helper processes. Each call names its risk, such as a mount; while one is stuck, its risk is avoided."""

    def __init__(self) -> None:
        self._wasted_seconds = 0.0  # waited for helpers that have not answered
        self._forker = Forker(_call, _close_descriptors)
        self._idle: ForkedProcess | None = None
        self._stuck: dict[Hashable, tuple[ForkedProcess, float]] = {}  # by risk: the helper, and the seconds waited for it

    def call(self, risk: Hashable, work: Callable[..., Answer], *arguments: object, descriptors: Sequence[int] = ()) -> Answer:
        """Return the result of `work(*arguments, *descriptors)`. Raises as that does, and NoAnswerError.

        Waits as long as `time_limits` allows for a sleeping or busy helper; less if other calls have used up the time for all.
        """
        for stuck in tuple(self._stuck):  # a helper that has answered late can take this call, so that no new process is needed
            self.is_free(stuck)
        if risk in self._stuck or len(self._stuck) >= MAX_STUCK:
            raise NoAnswerError
        helper, self._idle = self._reuse_or_start(), None
        limits = time_limits.current
        seconds_left = limits.all_helpers - self._wasted_seconds
        began = time.monotonic()
        try:
            helper.ask((work, *arguments), descriptors)
            answered = helper.has_answered(max(MIN_WAIT, min(limits.sleeping_helper, seconds_left)))
            busy_states = b"RD" if seconds_left > 0 else b"R"  # D: waits for a disk, or for an NFS server, which may never answer
            while not answered and (waited := time.monotonic() - began) < limits.busy_helper and _read_state(helper) in busy_states:
                answered = helper.has_answered(MIN_WAIT)
        except BaseException:
            helper.end(signal.SIGKILL, waits=False)  # otherwise the next call would get its answer
            raise
        if not answered:
            self._wasted_seconds += waited
            self._stuck[risk] = helper, waited
            raise NoAnswerError
        answer = self._receive_answer(helper)
        if isinstance(answer.value, BaseException):
            try:
                raise answer.value
            finally:
                del answer  # the exception refers to this frame: the cycle would keep the objects of all callers' frames alive
        return answer

    def is_free(self, risk: Hashable) -> bool:
        """Return True if no call with that risk is stuck. A late answer is discarded, and its call is no longer stuck."""
        helper, waited = self._stuck.get(risk, (None, 0.0))
        if helper is None:
            return True
        if not helper.has_answered(0):
            return False
        del self._stuck[risk]
        self._wasted_seconds -= waited  # the helper was only slow
        with suppress(OSError):  # the helper has died
            for descriptor in self._receive_answer(helper).descriptors:
                os.close(descriptor)
        return True

    def begin(self) -> ForkedProcess:
        """Start and return the process for the next call. All later ones are copies of our state now. Raises OSError."""
        self._forker.begin()
        return self._reuse_or_start()

    def _reuse_or_start(self) -> ForkedProcess:
        """Return an idle process for the next call, or a new one. Raises OSError."""
        self._idle = reuse_or_start(self._idle, self._forker.start_process)
        return self._idle

    def close(self) -> None:
        for helper, _ in self._stuck.values():
            helper.end(signal.SIGKILL, waits=False)
        if self._idle:
            self._idle.end(signal.SIGKILL)
        self._forker.close()
        self._stuck.clear()
        self._idle = None

    def _receive_answer(self, helper: ForkedProcess) -> Answer:
        """Return the helper's answer, and keep the helper for the next call. Raises OSError if it has died or cannot answer."""
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
    """Return the Helpers that all parts of this process share, so that all of them know which risks are stuck."""
    return Helpers()


def _read_state(process: ForkedProcess) -> bytes:
    """Return the letter of a process' state as in proc(5), such as `R` if it runs or waits for a CPU; `?` if it has ended."""
    try:
        with open(f"/proc/{process.pid}/stat", "rb") as file:  # noqa: PTH123 - without pathlib, which takes longer
            return file.read().rpartition(b") ")[2][:1]
    except OSError:
        return b"?"


# -- in a helper process


def _close_descriptors(pipe: int) -> None:
    """Close inherited descriptors, because others wait until all copies are closed: output pipes, perf events, BPF programs."""
    die_with_parent(ignore_signals=True)
    redirect_to_null(0, 1, 2)
    keep_only_descriptors(pipe)


def _call(work: Callable[..., Answer], *arguments: object) -> Answer:
    try:
        return work(*arguments)
    except Exception as error:  # noqa: BLE001 - the process that asked raises it
        error.__traceback__ = error.__context__ = error.__cause__ = None
        return Answer(error)
