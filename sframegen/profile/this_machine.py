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
GROUP = Path("/proc/self/autogroup")  # "/autogroup-7 nice 0"


@contextmanager
def going_first() -> Iterator[None]:
    """Within the block, take the processor first where that is allowed: else others keep a busy machine from us.

    Where the kernel shares processors among sessions (autogroup), a priority is one among the processes of the same session. So
    our session goes first, too.
    """
    before = os.getpriority(os.PRIO_PROCESS, 0)
    group = _group_priority() if before == 0 else None  # else somebody has chosen another one
    with suppress(OSError):
        if before == 0:
            os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
        if group == 0:
            GROUP.write_text(str(PRIORITY))
    try:
        yield
    finally:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, before)
            if group == 0:
                GROUP.write_text("0")


def _group_priority() -> int | None:
    """Return that of our session; None if there is none."""
    try:
        return int(GROUP.read_text().split()[-1])
    except (OSError, ValueError, IndexError):
        return None


def allow_many_files() -> tuple[int, int]:
    """Raise the limit of open files as far as is allowed: each mapped file takes two. Return the limits before."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    return before


def all_pids() -> Iterable[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
