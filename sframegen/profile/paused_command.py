"""Starts the program to profile. It waits to run until sampling has begun, so that even its first instruction is sampled."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time
from contextlib import suppress

from sframegen.program import time_limits
from sframegen.program.signals import ENDING, Interrupts

EXIT_CANNOT_RUN = 127  # as shells exit
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
POLL = 0.05  # seconds


class PausedCommand:
    """A child process that executes the command `arguments` once `resume` is called."""

    def __init__(self, arguments: tuple[str, ...]) -> None:
        go_reader, self._go_writer = os.pipe()
        self._error_reader, error_writer = os.pipe()
        self._status: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._go_writer)
            _wait_and_exec(arguments, go_reader, error_writer)
        os.close(go_reader)
        os.close(error_writer)

    def resume(self) -> None:
        """Let the child execute the program. Raises OSError if that fails."""
        with suppress(BrokenPipeError):
            os.write(self._go_writer, b"\n")
        os.close(self._go_writer)
        ready, _, _ = select.select([self._error_reader], [], [], time_limits.current.command_start)
        number = os.read(self._error_reader, 8) if ready else b""  # an errno; nothing after a successful exec
        os.close(self._error_reader)
        if number:
            self._wait(0)
            raise OSError(int(number), os.strerror(int(number)))

    def is_running(self) -> bool:
        if self._status is None:
            self._wait(os.WNOHANG)
        return self._status is None

    def finish(self, interrupts: Interrupts) -> int:
        """Wait for the program's end; return its exit status as shells do. Pass on signals, except Ctrl-C, which it gets itself."""
        interrupts.wait(self._poll_until_exit)
        if self.is_running():
            if interrupts.number != signal.SIGINT:
                os.kill(self.pid, interrupts.number)
            self._wait(0)
        return self._status or 0

    def kill(self) -> None:
        """End the program, because the profile failed."""
        if self.is_running():
            os.kill(self.pid, signal.SIGKILL)
            deadline = time.monotonic() + time_limits.current.process_end
            while self.is_running() and time.monotonic() < deadline:
                time.sleep(POLL / 10)

    def _poll_until_exit(self) -> None:
        while self.is_running():
            time.sleep(POLL)

    def _wait(self, flags: int) -> None:
        """Wait for the child with these flags of waitpid, and store its exit status as shells report it."""
        pid, status = os.waitpid(self.pid, flags)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            self._status = code if code >= 0 else 128 - code


def _wait_and_exec(arguments: tuple[str, ...], go_reader: int, error_writer: int) -> None:
    """Wait for a byte from the parent, then execute the program; on failure, write the errno. Runs in the child. Never returns."""
    try:
        for number in ENDING:
            signal.signal(number, signal.SIG_DFL if signal.getsignal(number) is not signal.SIG_IGN else signal.SIG_IGN)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        # Ambient capabilities that the profiler was started with are not meant for the program.
        ctypes.CDLL(None).prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
        if os.read(go_reader, 1):
            os.execvp(arguments[0], arguments)  # noqa: S606 - what the user asked for
    except OSError as error:
        os.write(error_writer, str(error.errno or 0).encode())
    finally:
        os._exit(EXIT_CANNOT_RUN)
