"""The most that a part of a test may take; when that is over, what its threads and child processes were doing."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn


class StillRunningError(BaseException):
    """Not an Exception: what a test tries in a loop does not go on after it."""


FRAMES = 12  # of each thread, the innermost


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise StillRunningError, in the main thread, after that time."""

    def give_up(*_: object) -> NoReturn:
        raise StillRunningError("\n".join([f"still running after {seconds} s", *stacks(), *children(os.getpid())]))

    previous = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def stacks() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for number, frame in sys._current_frames().items():
        yield f"thread {names.get(number, number)}:"
        yield "".join(traceback.format_stack(frame)[-FRAMES:]).rstrip()


def children(process: int) -> Iterator[str]:
    """A line for each process below that one: its state, where it waits in the kernel, its command line."""
    for number in [child for listed in Path(f"/proc/{process}/task").glob("*/children") for child in text_of(listed).split()]:
        state = text_of(Path(f"/proc/{number}/stat")).rpartition(") ")[2][:1]
        command = text_of(Path(f"/proc/{number}/cmdline")).replace("\0", " ")[:200]
        yield f"process {number}, child of {process}: state {state}, in {text_of(Path(f'/proc/{number}/wchan'))}: {command}"
        yield from children(int(number))


def text_of(path: Path) -> str:
    """What a file of /proc has, or nothing once the process has ended."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
