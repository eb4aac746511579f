"""Threads of another process stopped for a moment, by ptrace: seized, interrupted, and let go again in every case."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sframegen.stack.live.proc import GONE, fields_of, lives, threads_of, why_not
from sframegen.stack.snapshot.snapshot import StackError

if TYPE_CHECKING:
    from collections.abc import Iterator

DETACH, GETREGSET, SEIZE, INTERRUPT = 17, 0x4204, 0x4206, 0x4207
EVENT_STOP = 128
ASLEEP = "it is in an uninterruptible sleep"
TOO_FAST = "the process starts threads faster than they can be stopped"
EXECUTES = "it executes another program just now: try again"
ENDED = {os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED}
SLEEPS_ON, RUNS = b"D", b"R"
WALL = 0x40000000  # __WALL: threads, too
MAX_REGISTERS = 4096  # bytes
ATTEMPTS = 3  # to seize a thread: EPERM is also of one that just ended, and another took over its id to execute a program
BURIAL_INTERVAL = 0.005  # seconds
PATIENCE = 2.0  # seconds: a thread in an uninterruptible sleep stops when that is over
# Signals that wait until all threads run again: those that end us, and those of terminals that stop us.
HELD_BACK = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.ptrace.restype = ctypes.c_long
_LIBC.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)


class _Vector(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


def _ptrace(request: int, tid: int, address: int = 0, data: int = 0) -> None:
    """Raises OSError."""
    if _LIBC.ptrace(request, tid, address, data) == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def register_set(tid: int, kind: int) -> bytes:
    """The registers of a stopped thread; none where it has none of that kind. Raises ProcessLookupError where it is gone."""
    buffer = ctypes.create_string_buffer(MAX_REGISTERS)
    vector = _Vector(ctypes.addressof(buffer), MAX_REGISTERS)
    try:
        _ptrace(GETREGSET, tid, kind, ctypes.addressof(vector))
    except ProcessLookupError:
        raise
    except OSError:
        return b""
    return buffer.raw[: vector.size]


class State(NamedTuple):
    """What became of a thread that we trace: `si_code` 0 for one that runs."""

    si_code: int
    si_status: int


def _state(tid: int) -> State | None:
    """Without taking notice: our children are waited for by those who started them. None where it is gone."""
    try:
        found = os.waitid(os.P_PID, tid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT | WALL)
    except OSError:
        return None
    return State(found.si_code, found.si_status) if found else State(0, 0)


def _signal(state: State) -> int:
    """What is to be delivered to a thread that stopped so."""
    event, number = divmod(state.si_status, 256)
    return 0 if event == EVENT_STOP else number


def _scheduled(tid: int, deadline: float) -> bytes:
    """The letter of its state. Seized in an uninterruptible sleep (`D`), it would stop much later: that is waited for."""
    while True:
        try:
            state = Path(f"/proc/{tid}/stat").read_bytes().rpartition(b") ")[2][:1]
        except OSError:
            return b""
        if state != SLEEPS_ON or time.monotonic() > deadline:
            return state
        time.sleep(0.001)


_OURS: set[int] = set()  # threads that we traced and did not let go: each is to be buried when it ends, however late


class Stopped:
    """Threads of a process that are held. Not all may be had: `refused` says which, and why."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.tids: list[int] = []
        self.refused: dict[int, str] = {}
        self.idle: set[int] = set()  # that did not run, nor wait for a processor, just before
        self.began = self.ended = 0.0  # by time.monotonic(): the first did not run any more, all ran again
        self._seized: dict[int, int | None] = {}  # with the signal to deliver when it goes on; None: has not stopped yet

    def stop(self, only: int | None = None) -> None:
        """All threads, or one. Those that run meanwhile may start others, but not for ever."""
        done = threading.Event()
        burials = threading.Thread(target=self._bury_meanwhile, args=(done,), daemon=True)
        burials.start()
        try:
            latest = time.monotonic() + PATIENCE
            self._stop(only)
            while not only and self._has_changed() and time.monotonic() < latest:
                self.refused.clear()
                self._stop(only)
        finally:
            done.set()
            burials.join()
        self.tids = [tid for tid, number in self._seized.items() if number is not None]

    def _stop(self, only: int | None) -> None:
        latest = time.monotonic() + PATIENCE
        while new := self._new(only):
            if self.began and time.monotonic() > latest:
                self.refused[new[0]] = EXECUTES if new[0] == self.pid else TOO_FAST  # for all of them
                break
            deadline = time.monotonic() + PATIENCE
            for tid in new:  # others may begin as long as one runs
                state = _scheduled(tid, deadline)
                if state == SLEEPS_ON:
                    self.refused[tid] = ASLEEP
                    continue
                if state != RUNS:
                    self.idle.add(tid)
                self._seize(tid)
            self.began = self.began or time.monotonic()
            for tid in new:
                if tid in self._seized:
                    with suppress(OSError):  # it is about to end, and is ours until it is buried
                        _ptrace(INTERRUPT, tid)
            deadline = time.monotonic() + PATIENCE
            for tid in new:
                if tid in self._seized:
                    self._wait(tid, deadline)

    def _has_changed(self) -> bool:
        """All threads that were there have ended, and it lives: it executes another program."""
        return not self._seized and set(self.refused.values()) <= {GONE} and any(map(lives, threads_of(self.pid)))

    def _new(self, only: int | None) -> list[int]:
        """Who is still to be seized: the first thread again, where another has ended it and taken its id to execute a program."""
        if self.refused.get(self.pid) == GONE and lives(self.pid):
            del self.refused[self.pid]
        return [tid for tid in ([only] if only else threads_of(self.pid)) if tid not in self._seized and tid not in self.refused]

    def let_go(self) -> None:
        """All of them; never raises. What has been let go is not touched again."""
        for tid, number in self._seized.items():
            self._release(tid, number)
        if self.pid not in self._seized and self.pid in _OURS:
            self._release(self.pid, 0)
        deadline = time.monotonic() + PATIENCE
        for tid in list(_OURS):  # that are about to end
            while not _bury(tid) and self.refused.get(tid) == GONE and tid != self.pid and time.monotonic() < deadline:
                time.sleep(0.0001)
        self._seized.clear()
        self.ended = self.ended or time.monotonic()

    def _seize(self, tid: int) -> None:
        for _ in range(ATTEMPTS):
            try:
                _ptrace(SEIZE, tid)
            except OSError as error:
                self.refused[tid] = GONE if error.errno == errno.ESRCH else why_not(tid)
                if error.errno != errno.EPERM:
                    return
            else:
                self.refused.pop(tid, None)
                self._seized[tid] = None
                _OURS.add(tid)
                return

    def _wait(self, tid: int, deadline: float) -> None:
        pause = 0.0
        while True:
            state = _state(tid)
            if state is None or state.si_code in ENDED or (pause and tid == self.pid and not self._first_is_ours()):
                self._lose(tid, deadline)
                return
            if state.si_code:
                self._seized[tid] = _signal(state)
                return
            if time.monotonic() > deadline:
                self.refused[tid] = ASLEEP
                return
            time.sleep(pause)
            pause = min(2 * pause + 0.00002, 0.01)

    def _first_is_ours(self) -> bool:
        """And lives. Its end is not told while others live; one that executes a program takes its id, and has to stop, too."""
        fields = fields_of(self.pid)
        if fields.get("State", "Z")[0] in "ZX" or fields["TracerPid"].strip() != str(os.getpid()):
            return False
        with suppress(OSError):
            _ptrace(INTERRUPT, self.pid)
        return True

    def _lose(self, tid: int, deadline: float) -> None:
        """It has ended; or it is the first thread now, by executing another program, and ours as before."""
        del self._seized[tid]
        self.refused[tid] = GONE
        if self.pid not in self._seized and self._first_is_ours():
            self.refused.pop(self.pid, None)
            self._seized[self.pid] = None
            _OURS.add(self.pid)
            self._wait(self.pid, deadline)

    def _bury_meanwhile(self, done: threading.Event) -> None:
        """SEIZE waits for a thread that executes another program, which waits until the others, ours, are buried."""
        while not done.wait(BURIAL_INTERVAL):
            for tid in list(_OURS):
                _bury(tid)

    def _release(self, tid: int, number: int | None) -> None:
        """One that was ended while it was stopped takes a moment; its id may be another's by then, who stops, too."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                _ptrace(DETACH, tid, 0, number or 0)
            except OSError:
                if _bury(tid) or number is None or time.monotonic() > deadline:  # still not stopped: the kernel lets go when we end
                    return
            else:
                _OURS.discard(tid)
                return
            if tid == self.pid and not self._first_is_ours():
                return
            time.sleep(0.0001)
            state = _state(tid)
            number = _signal(state) if state and state.si_code not in (0, *ENDED) else 0


def _bury(tid: int) -> bool:
    """If it has ended, no one is notified before its tracer has taken notice. Who started our own child waits for it.

    Whether it is not ours any more.
    """
    state = _state(tid)
    if state and state.si_code not in ENDED:
        return False
    fields = fields_of(tid)
    if state and not (fields.get("Tgid", "").strip() == str(tid) and fields.get("PPid", "").strip() == str(os.getpid())):
        with suppress(OSError):
            os.waitpid(tid, WALL | os.WNOHANG)
    _OURS.discard(tid)
    return True


@contextmanager
def stopped(pid: int, tid: int | None = None) -> Iterator[Stopped]:
    """The threads of a process, or one, do not run within the block. What would end us meanwhile comes after it."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
    threads = Stopped(pid)
    try:
        threads.stop(tid)
        yield threads
    finally:
        threads.let_go()
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def refusal(pid: int, refused: dict[int, str]) -> StackError:
    """What to say of a process of which no thread could be had."""
    return StackError(f"process {pid}: {refused.get(pid) or next(iter(refused.values()), 'no such process')}")
