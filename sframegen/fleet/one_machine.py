"""The engine for one machine: processes of this program, each with a pipe of its own, and without open ports."""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Self

from sframegen.fleet.package_process import PackageProcess
from sframegen.program.signals import signals_held

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sframegen.fleet.run_options import Job, NumberedItem, NumberedResult


PREFIX = "sframegen-fleet-"
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def run_directory() -> Iterator[str]:
    """Yield a private directory, which stays locked while this process lives. Raises OSError."""
    _remove_left_over(tempfile.gettempdir())
    directory, descriptor = _create_locked()
    try:
        yield directory
    finally:
        with signals_held():
            shutil.rmtree(directory, ignore_errors=True)
        os.close(descriptor)


def _create_locked() -> tuple[str, int]:
    """Create and lock a directory; return it and its descriptor. Retry if another run removed it before the lock."""
    while True:
        directory = tempfile.mkdtemp(prefix=PREFIX)
        with suppress(FileNotFoundError):
            descriptor = os.open(directory, DIRECTORY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                return directory, descriptor
            os.close(descriptor)


def _remove_left_over(above: str) -> None:
    """Remove this user's directories whose process is gone, as far as possible."""
    for name in os.listdir(above):  # noqa: PTH208 - as text
        if name.startswith(PREFIX):
            with suppress(OSError):
                _remove_unlocked(above, name)


def _remove_unlocked(above: str, name: str) -> None:
    """Remove a directory that is not locked. It is opened once, so that a replacement by another user is safe. Raises OSError."""
    path = os.path.join(above, name)  # noqa: PTH118 - as text
    descriptor = os.open(path, DIRECTORY)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for entry in os.listdir(descriptor):  # noqa: PTH208 - of a directory that is open
            try:
                os.unlink(entry, dir_fd=descriptor)
            except IsADirectoryError:
                shutil.rmtree(entry, dir_fd=descriptor)
        os.rmdir(path)  # noqa: PTH106 - as text
    finally:
        os.close(descriptor)


class OneMachine:
    """A block at whose end all its processes, even busy ones, and their temporary files are removed."""

    def __init__(self, job: Job, processes: int) -> None:
        """`processes`: the most at a time."""
        self._job = job
        self._most = processes

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._directory = stack.enter_context(run_directory())
            self._ends = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def submit(self, waiting: Iterable[NumberedItem]) -> Iterator[NumberedResult]:
        """Give each process one package at a time, and yield the results. Raises OSError if a result cannot be written."""
        left = iter(waiting)
        idle: list[PackageProcess] = []
        at_work: dict[PackageProcess, NumberedItem] = {}
        while True:
            while len(at_work) < self._most and (numbered := next(left, None)) is not None:
                process = idle.pop() if idle else self._new_process()
                finished = process.begin(numbered[1])
                if finished is None:
                    at_work[process] = numbered
                else:
                    idle.append(process)
                    yield *numbered, finished
            if not at_work:
                return
            _wait_for_any(at_work)
            for process, numbered in list(at_work.items()):
                finished = process.outcome()
                if finished is not None:
                    del at_work[process]
                    idle.append(process)
                    yield *numbered, finished

    def _new_process(self) -> PackageProcess:
        process = PackageProcess(self._directory, self._job.output, self._job.options)
        self._ends.callback(process.end)
        return process


def _wait_for_any(processes: Iterable[PackageProcess]) -> None:
    """Wait until one of the processes has an answer, has died, or has no time left."""
    poll = select.poll()
    for process in processes:
        poll.register(process.pipe, select.POLLIN)
    poll.poll(1000 * max(0.0, min(process.deadline for process in processes) - monotonic()))
