"""Makes tables in processes forked from this one, while it goes on; one that dies or takes too long costs its file only."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import select
import signal
import socket
from collections import deque
from contextlib import suppress
from multiprocessing import get_context
from typing import TYPE_CHECKING, NamedTuple, Self

from sframegen.detached.stores import Stores
from sframegen.profile.tables.decoded_table import DecodedTable
from sframegen.profile.tables.make_table import MadeTable, Origin, make_table
from sframegen.program.signals import ENDING, signals_held
from sframegen.program.workers import TOO_LITTLE, attempt, death

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sframegen.elf.file import ElfFile
    from sframegen.profile.tables.table_cache import TableCache

    Make = Callable[[ElfFile], MadeTable]

PR_SET_PDEATHSIG = 1
SECONDS = 30.0  # for one file; the largest take less than one
ORDER_BYTES = 8
MAX_REPLY = 1 << 16  # bytes
MAX_WHY = 1000  # characters


class Built(NamedTuple):
    """What became of the file of that number; the rest as in MadeTable."""

    number: int
    table: DecodedTable | None
    why: str
    origin: Origin


class TableBuilder:
    """`request` files; `ready` says what came of them. `close` ends what is left, and trims the cache."""

    def __init__(self, workers: int, cache: TableCache | None, seconds: float = SECONDS, *, stores: Stores | None = None) -> None:
        """`workers`: the most processes; there are none while there is nothing to do. `seconds`: the most for one file.

        `stores`: of detached sections.
        """
        self._most = workers
        self._cache = cache
        self._stores = stores or Stores()
        self._make: Make = lambda elf: make_table(elf, self._cache, self._stores)
        self._seconds = seconds
        self._files: list[tuple[int, ElfFile | None]] = []  # all that were requested, with their numbers; None if done
        self._waiting: deque[int] = deque()  # places in _files
        self._workers: dict[int, _Worker] = {}  # by the descriptors of their pipes
        self._done: list[Built] = []
        self._epoll = select.epoll()
        self._some_done = os.eventfd(0, os.EFD_CLOEXEC)
        self._epoll.register(self._some_done, select.EPOLLIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """A descriptor that is readable when `ready` has something new."""
        return self._epoll.fileno()

    @property
    def pending(self) -> int:
        """How many files have no outcome yet."""
        return len(self._waiting) + len(self._workers) + len(self._done)

    def request(self, number: int, elf: ElfFile) -> None:
        """Make the table of a file; it stays open until it is done."""
        kept = self._cache.recall(elf.status, self._stores.state_for(elf)) if self._cache else None
        if kept is not None:
            self._finish(Built(number, kept, "", Origin.KEPT))
            return
        self._waiting.append(len(self._files))
        self._files.append((number, elf))
        self._start()

    def ready(self) -> list[Built]:
        """What has come since the last call; waits for nothing."""
        built = []
        for descriptor, _ in self._epoll.poll(0):
            if descriptor == self._some_done:
                os.eventfd_read(descriptor)
                continue
            worker = self._workers[descriptor]
            number, _ = self._files[worker.place]
            self._files[worker.place] = (number, None)
            reply = worker.reply(self._seconds)
            built.append(Built(number, reply.table, reply.why, reply.origin))
            if not worker.dead and self._waiting and self._waiting[0] < worker.known:
                worker.begin(self._waiting.popleft())
            else:
                self._end(descriptor)
        self._start()
        built += self._done
        self._done = []
        return built

    def close(self) -> None:
        self._waiting.clear()
        for worker in self._workers.values():
            worker.process.terminate()
        for descriptor in [*self._workers]:
            self._end(descriptor)
        self._epoll.close()
        os.close(self._some_done)
        if self._cache is not None:
            self._cache.trim()

    def _finish(self, built: Built) -> None:
        """Keep what no process has to send, for `ready`."""
        self._done.append(built)
        os.eventfd_write(self._some_done, 1)

    def _start(self) -> None:
        """Fork processes for what waits. They have the files that were requested before."""
        while self._waiting and len(self._workers) < self._most:
            try:
                with signals_held():  # a process is known before it can be left running
                    worker = _Worker(self._files, self._make, self._seconds, [other.pipe for other in self._workers.values()])
                    self._workers[worker.pipe.fileno()] = worker
            except OSError as error:
                if error.errno not in TOO_LITTLE:
                    raise
                if self._workers:
                    return
                number, _ = self._files[self._waiting.popleft()]
                self._finish(Built(number, None, f"cannot start a process: {error.strerror}", Origin.NOTHING))
            else:
                self._epoll.register(worker.pipe, select.EPOLLIN)
                worker.begin(self._waiting.popleft())

    def _end(self, descriptor: int) -> None:
        worker = self._workers.pop(descriptor)
        self._epoll.unregister(descriptor)
        worker.pipe.close()  # it ends when it next asks for a file
        worker.process.join()


class _Worker:
    """A process that makes one table after the other, of the `known` first files: those that were there when it was forked."""

    def __init__(
        self,
        files: list[tuple[int, ElfFile | None]],
        make: Make,
        seconds: float,
        others: Iterable[socket.socket],
    ) -> None:
        self.known = len(files)
        self.place = -1  # of the file that it works on
        self.dead = False
        self.pipe, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:  # no other copy is left: the pipe ends with the process
            try:
                self.process = get_context("fork").Process(target=_serve, args=(files, make, seconds, theirs, [*others, self.pipe]))
                self.process.start()
            except OSError:
                self.pipe.close()
                raise

    def begin(self, place: int) -> None:
        self.place = place
        with suppress(OSError):  # it has died: reply() says so
            self.pipe.send(place.to_bytes(ORDER_BYTES, "little"))

    def reply(self, seconds: float) -> MadeTable:
        """Waits for it. If the process has died, that is the reply."""
        try:
            message, descriptors, _, _ = socket.recv_fds(self.pipe, MAX_REPLY, 1)
        except OSError:
            message, descriptors = b"", []
        if not message:
            self.dead = True
            self.process.join()
            code = self.process.exitcode or 0
            why = f"it took longer than {seconds:g} seconds" if code == -signal.SIGALRM else str(death(code))
            return MadeTable(None, Origin.NOTHING, why)
        origin, why, numbers, left_out = json.loads(message)
        if not descriptors:
            return MadeTable(None, Origin[origin], why)
        [descriptor] = descriptors
        try:
            data = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
        finally:
            os.close(descriptor)
        return MadeTable(DecodedTable._make([*numbers, data, left_out]), Origin[origin], why)


def _serve(
    files: list[tuple[int, ElfFile | None]],
    make: Make,
    seconds: float,
    pipe: socket.socket,
    inherited: Iterable[socket.socket],
) -> None:
    """The process: answers places in `files` with what comes of them, until nobody asks any more."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # else the kernel program, which we inherit, would outlive a kill
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that forked this one
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGBUS, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*ENDING, signal.SIGALRM))
    os.setpriority(os.PRIO_PROCESS, 0, max(0, os.getpriority(os.PRIO_PROCESS, 0)))  # the profiler's own may be higher
    for other in inherited:
        other.close()
    with suppress(ConnectionError):
        while order := pipe.recv(ORDER_BYTES):
            signal.setitimer(signal.ITIMER_REAL, seconds)  # which ends this process
            _, elf = files[int.from_bytes(order, "little")]
            if elf is not None:
                failure = attempt(lambda one: _answer(pipe, make(one)), elf)
                if failure is not None:
                    _answer(pipe, MadeTable(None, Origin.NOTHING, str(failure) or type(failure).__name__))
            signal.setitimer(signal.ITIMER_REAL, 0)


def _answer(pipe: socket.socket, made: MadeTable) -> None:
    """Send what was made; the table's data is in a file without a name."""
    why = made.why[:MAX_WHY]
    if made.table is None:
        pipe.send(json.dumps((made.origin.name, why, [], 0)).encode())
        return
    *numbers, data, left_out = made.table
    with os.fdopen(os.memfd_create("table", os.MFD_CLOEXEC), "wb") as file:
        file.write(data)
        file.flush()
        socket.send_fds(pipe, [json.dumps((made.origin.name, why, numbers, left_out)).encode()], [file.fileno()])
