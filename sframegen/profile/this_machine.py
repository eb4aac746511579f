"""Resources of this machine that a profile needs: priority, open files, the list of processes; and whether root is root."""

from __future__ import annotations

import os
import resource
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


PRIORITY = -10


@contextmanager
def going_first() -> Iterator[None]:
    """Run the block with a higher priority, where that is allowed, so that a busy machine does not delay it."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with suppress(OSError):
        if before == 0:  # with another value, somebody has chosen it
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


ALL_USERS = ["0", "0", "4294967295"]  # the map of the first user namespace


@cache
def in_user_namespace() -> bool:
    """Return True in a user namespace other than the machine's first: its capabilities do not hold for the machine."""
    try:
        with open("/proc/self/uid_map", encoding="utf-8") as users:  # noqa: PTH123 - without pathlib, which takes longer
            return users.read().split() != ALL_USERS
    except OSError:  # a kernel without user namespaces
        return False


def root_in_words() -> str:
    """Return words for the root user who has all rights on this machine: not that of another user namespace."""
    return "root of the machine, outside of this user namespace" if in_user_namespace() else "root"
