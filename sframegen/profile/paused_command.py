"""A program that is started for a profile. It waits until sampling has begun, so that its first instruction is sampled."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time
from contextlib import suppress

from sframegen.program import patience
from sframegen.program.signals import ENDING, Interrupts

CANNOT_RUN = 127
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
POLL = 0.05  # seconds


class PausedCommand:
    """A child process that runs `arguments` after `resume`."""

    def __init__(self, arguments: tuple[str, ...]) -> None:
        ours_to_go, self._go = os.pipe()
        self._failed, theirs_to_fail = os.pipe()
        self._status: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._go)
            _become(arguments, ours_to_go, theirs_to_fail)
        os.close(ours_to_go)
        os.close(theirs_to_fail)

    def resume(self) -> None:
        """Let the program run. Raises OSError if there is no such program."""
        with suppress(BrokenPipeError):
            os.write(self._go, b"\n")
        os.close(self._go)
        ready, _, _ = select.select([self._failed], [], [], patience.current.started)
        answer = os.read(self._failed, 8) if ready else b""
        os.close(self._failed)
        if answer:
            self._wait(0)
            raise OSError(int(answer), os.strerror(int(answer)))

    def runs(self) -> bool:
        if self._status is None:
            self._wait(os.WNOHANG)
        return self._status is None

    def finish(self, interrupts: Interrupts) -> int:
        """Wait for the program's end; return its exit status as shells do. It gets Ctrl-C itself; other signals are passed on."""
        interrupts.wait(self._wait_patiently)
        if self.runs():
            if interrupts.number != signal.SIGINT:
                os.kill(self.pid, interrupts.number)
            self._wait(0)
        return self._status or 0

    def kill(self) -> None:
        """End the program, because the profile failed."""
        if self.runs():
            os.kill(self.pid, signal.SIGKILL)
            deadline = time.monotonic() + patience.current.killed
            while self.runs() and time.monotonic() < deadline:
                time.sleep(POLL / 10)

    def _wait_patiently(self) -> None:
        while self.runs():
            time.sleep(POLL)

    def _wait(self, flags: int) -> None:
        pid, status = os.waitpid(self.pid, flags)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            self._status = code if code >= 0 else 128 - code


def _become(arguments: tuple[str, ...], go: int, failed: int) -> None:
    """In the child: wait, then run the program. Never returns."""
    try:
        for number in ENDING:
            signal.signal(number, signal.SIG_DFL if signal.getsignal(number) is not signal.SIG_IGN else signal.SIG_IGN)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        # Those that we were started with are not for the program.
        ctypes.CDLL(None).prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
        if os.read(go, 1):
            os.execvp(arguments[0], arguments)  # noqa: S606 - what the user asked for
    except OSError as error:
        os.write(failed, str(error.errno or 0).encode())
    finally:
        os._exit(CANNOT_RUN)
