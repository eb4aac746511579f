"""Stops the threads of another process for a moment with ptrace: seizes them, interrupts them, and always releases them.

SEIZE makes us a thread's tracer, INTERRUPT stops it, and DETACH lets it run again. Meanwhile other threads may start: they are
stopped too. A thread may end: then its tracer must reap it (waitpid), or its parent never hears of the end. And a thread may
execute a program: that ends all other threads, and the thread takes over the id of the first one, which is the id of the process.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from sframegen.program import time_limits
from sframegen.stack.live.proc import EXECUTES, GONE, explain_refusal, is_alive, proc_contents, status_fields_of, threads_of

if TYPE_CHECKING:
    from collections.abc import Iterator

DETACH, GETREGSET, SEIZE, INTERRUPT = 17, 0x4204, 0x4206, 0x4207  # requests: PTRACE_*
EVENT_STOP = 128  # PTRACE_EVENT_STOP
ASLEEP = "it is in an uninterruptible sleep"
FORBIDDEN = "ptrace is forbidden here (seccomp): start the container with the capability SYS_PTRACE, or run on the host"
NO_THREAD = 1 << 23  # an id above those that kernels give to threads
TOO_FAST = "the process starts threads faster than they can be stopped"
ENDED = {os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED}
IN_DISK_SLEEP, RUNNING = b"D", b"R"  # states in /proc/TID/stat
WALL = 0x40000000  # __WALL: wait for all kinds of threads
MAX_REGISTERS = 4096  # bytes
SEIZE_ATTEMPTS = 20  # because EPERM also comes if a thread just ended, and another took over its id to execute a program
REAP_INTERVAL = 0.005  # seconds
# Signals that are held back until all threads run again, because they end this program, or stop it from a terminal.
HELD_BACK = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.ptrace.restype = ctypes.c_long
_LIBC.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)


class _IoVector(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


def _ptrace(request: int, tid: int, address: int = 0, data: int = 0) -> None:
    """Make a ptrace request. Raises OSError."""
    if _LIBC.ptrace(request, tid, address, data) == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _is_forbidden() -> bool:
    """Return True if ptrace is forbidden altogether. If it is not, it fails with ESRCH for a thread that does not exist."""
    try:
        _ptrace(SEIZE, NO_THREAD)
    except OSError as error:
        return error.errno != errno.ESRCH
    return False


def read_register_set(tid: int, kind: int) -> bytes:
    """Return a stopped thread's register set (NT_*), empty if it has none. Raises ProcessLookupError if it has ended."""
    buffer = ctypes.create_string_buffer(MAX_REGISTERS)
    vector = _IoVector(ctypes.addressof(buffer), MAX_REGISTERS)
    try:
        _ptrace(GETREGSET, tid, kind, ctypes.addressof(vector))
    except ProcessLookupError:
        raise
    except OSError:
        return b""
    return buffer.raw[: vector.size]


class ThreadState(NamedTuple):
    """The state of a traced thread, as waitid returns it. `si_code` is 0 if it runs."""

    si_code: int
    si_status: int


def _read_state(tid: int) -> ThreadState | None:
    """Return a thread's state without reaping it, because its parent may have to do that; None if the thread is gone."""
    try:
        result = os.waitid(os.P_PID, tid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT | WALL)
    except OSError:
        return None
    return ThreadState(result.si_code, result.si_status) if result else ThreadState(0, 0)


def _signal_to_deliver(state: ThreadState) -> int:
    """Return the signal to deliver on release to a thread that stopped with this state; 0 for none."""
    event, signal_number = divmod(state.si_status, 256)
    return 0 if event == EVENT_STOP else signal_number


def _wait_for_sleep_end(tid: int, deadline: float) -> bytes:
    """Wait until a thread is in no uninterruptible sleep, in which it would stop much later; return the letter of its state."""
    while True:
        try:
            state = proc_contents(f"/proc/{tid}/stat").rpartition(b") ")[2][:1]
        except OSError:
            return b""
        if state != IN_DISK_SLEEP or time.monotonic() > deadline:
            return state
        time.sleep(0.001)


_TRACED: set[int] = set()  # threads that were seized and not released: each must be reaped when it ends, however late


class StoppedThreads:
    """The threads of a process, and the means to stop and release them. `refused`: those that could not be stopped, and why."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.tids: list[int] = []
        self.refused: dict[int, str] = {}
        self.idle: set[int] = set()  # those that neither ran nor waited for a processor just before
        self.began = self.ended = 0.0  # time.monotonic() when the first thread stopped, and when all ran again
        self._seized: dict[int, int | None] = {}  # by id, the signal to deliver on release; None for a thread not stopped yet

    def stop(self, only: int | None = None) -> None:
        """Stop all threads, or thread `only`. Threads that start meanwhile are stopped too, within a time limit."""
        done = threading.Event()
        reaper = threading.Thread(target=self._reap_meanwhile, args=(done,), daemon=True)
        try:
            reaper.start()
        except RuntimeError:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from None
        try:
            deadline = time.monotonic() + time_limits.current.thread_stop
            self._stop_new_threads(only)
            while not only and self._executes_program() and time.monotonic() < deadline:
                self.refused.clear()
                self._stop_new_threads(only)
        finally:
            done.set()
            reaper.join()
        self.tids = [tid for tid, signal_number in self._seized.items() if signal_number is not None]

    def _stop_new_threads(self, only: int | None) -> None:
        """Stop threads until no new one appears, because others may start as long as one runs."""
        last_deadline = time.monotonic() + time_limits.current.thread_stop
        while new_tids := self._find_new_threads(only):
            if self.began and time.monotonic() > last_deadline:
                self.refused[new_tids[0]] = EXECUTES if new_tids[0] == self.pid else TOO_FAST  # one entry stands for all of them
                break
            deadline = time.monotonic() + time_limits.current.thread_stop
            for tid in new_tids:
                state = _wait_for_sleep_end(tid, deadline)
                if state == IN_DISK_SLEEP:
                    self.refused[tid] = ASLEEP
                    continue
                if state != RUNNING:
                    self.idle.add(tid)
                self._seize(tid)
            self.began = self.began or time.monotonic()
            for tid in new_tids:
                if tid in self._seized:
                    with suppress(OSError):  # it fails for a thread about to end, which stays traced until it is reaped
                        _ptrace(INTERRUPT, tid)
            deadline = time.monotonic() + time_limits.current.thread_stop
            for tid in new_tids:
                if tid in self._seized:
                    self._wait_until_stopped(tid, deadline)

    def _executes_program(self) -> bool:
        """Return True if the process executes another program: all known threads have ended, but the process lives."""
        return not self._seized and set(self.refused.values()) <= {GONE} and any(map(is_alive, threads_of(self.pid)))

    def _find_new_threads(self, only: int | None) -> list[int]:
        """Return the threads still to seize, among them the first one if another took over its id to execute a program."""
        if self.refused.get(self.pid) == GONE and is_alive(self.pid):
            del self.refused[self.pid]
        return [tid for tid in ([only] if only else threads_of(self.pid)) if tid not in self._seized and tid not in self.refused]

    def release_all(self) -> None:
        """Release all threads, for good. Never raises."""
        for tid, signal_number in self._seized.items():
            self._release(tid, signal_number)
        if self.pid not in self._seized and self.pid in _TRACED:
            self._release(self.pid, 0)
        deadline = time.monotonic() + time_limits.current.thread_stop
        for tid in list(_TRACED):  # threads that are about to end
            while not _reap(tid) and self.refused.get(tid) == GONE and tid != self.pid and time.monotonic() < deadline:
                time.sleep(0.0001)
        self._seized.clear()
        self.ended = self.ended or time.monotonic()

    def _seize(self, tid: int) -> None:
        for _ in range(SEIZE_ATTEMPTS):
            try:
                _ptrace(SEIZE, tid)
            except OSError as error:
                self.refused[tid] = GONE if error.errno == errno.ESRCH else explain_refusal(tid)
                if self.refused[tid] == EXECUTES and _is_forbidden():
                    self.refused[tid] = FORBIDDEN
                if error.errno != errno.EPERM or self.refused[tid] not in (GONE, EXECUTES):
                    return
            else:
                self.refused.pop(tid, None)
                self._seized[tid] = None
                _TRACED.add(tid)
                return

    def _wait_until_stopped(self, tid: int, deadline: float) -> None:
        """Wait until a seized thread has stopped or ended, or until the deadline."""
        pause = 0.0  # seconds, which grow while nothing happens
        while True:
            state = _read_state(tid)
            if state is None or state.si_code in ENDED or (pause and tid == self.pid and not self._still_traces_first_thread()):
                self._forget_ended_thread(tid, deadline)
                return
            if state.si_code:
                self._seized[tid] = _signal_to_deliver(state)
                return
            if time.monotonic() > deadline:
                self.refused[tid] = ASLEEP
                return
            time.sleep(pause)
            pause = min(2 * pause + 0.00002, 0.01)

    def _still_traces_first_thread(self) -> bool:
        """Return True if we trace the first thread and it lives, because its end is not reported while other threads live.

        The thread is interrupted again: it may be another one, which has just executed a program and taken over the id.
        """
        fields = status_fields_of(self.pid)
        if fields.get("State", "Z")[0] in "ZX" or fields["TracerPid"].strip() != str(os.getpid()):
            return False
        with suppress(OSError):
            _ptrace(INTERRUPT, self.pid)
        return True

    def _forget_ended_thread(self, tid: int, deadline: float) -> None:
        """Forget a thread that has ended. If it executed a program instead, it is now the first thread, and still traced."""
        del self._seized[tid]
        self.refused[tid] = GONE
        if self.pid not in self._seized and self._still_traces_first_thread():
            self.refused.pop(self.pid, None)
            self._seized[self.pid] = None
            _TRACED.add(self.pid)
            self._wait_until_stopped(self.pid, deadline)

    def _reap_meanwhile(self, done: threading.Event) -> None:
        """Reap threads until `done`: SEIZE may wait for one that executes a program, and that one waits until others are reaped."""
        while not done.wait(REAP_INTERVAL):
            for tid in list(_TRACED):
                _reap(tid)

    def _release(self, tid: int, signal_number: int | None) -> None:
        """Release a thread with this signal, None if it has not stopped; and the thread that took over its id if it was killed."""
        deadline = time.monotonic() + time_limits.current.thread_stop
        while True:
            try:
                _ptrace(DETACH, tid, 0, signal_number or 0)
            except OSError:
                # The kernel releases one that is not stopped.
                if _reap(tid) or signal_number is None or time.monotonic() > deadline:
                    return
            else:
                _TRACED.discard(tid)
                return
            if tid == self.pid and not self._still_traces_first_thread():
                return
            time.sleep(0.0001)
            state = _read_state(tid)
            signal_number = _signal_to_deliver(state) if state and state.si_code not in (0, *ENDED) else 0


def _reap(tid: int) -> bool:
    """Reap a thread that has ended, unless it is our own child, because the kernel tells its parent only after its tracer.

    Return True if it is no longer traced.
    """
    state = _read_state(tid)
    if state and state.si_code not in ENDED:
        return False
    fields = status_fields_of(tid)
    if state and not (fields.get("Tgid", "").strip() == str(tid) and fields.get("PPid", "").strip() == str(os.getpid())):
        with suppress(OSError):
            os.waitpid(tid, WALL | os.WNOHANG)
    _TRACED.discard(tid)
    return True


@contextmanager
def stopped(pid: int, tid: int | None = None) -> Iterator[StoppedThreads]:
    """Yield the threads of a process, or one of them, stopped within the block. Signals that end us are delivered after it."""
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
    threads = StoppedThreads(pid)
    try:
        threads.stop(tid)
        yield threads
    finally:
        threads.release_all()
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
