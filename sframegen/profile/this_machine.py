"""What a profile takes of this machine: its turn on the processor, open files, and which processes there are."""

from __future__ import annotations

import os
import resource
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PRIORITY = -10


@contextmanager
def going_first() -> Iterator[None]:
    """Within the block, take the processor first where that is allowed: else others keep a busy machine from us."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with suppress(OSError):
        if before == 0:  # else somebody has chosen another one
            os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
    try:
        yield
    finally:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, before)


def allow_many_files() -> tuple[int, int]:
    """Raise the limit of open files as far as is allowed: each mapped file takes two. Return the limits before."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    return before


def all_pids() -> Iterable[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
