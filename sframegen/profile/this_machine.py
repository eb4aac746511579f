"""What a profile needs from this machine: priority, open files, the list of processes, and what the root user may do here."""

from __future__ import annotations

import os
import resource
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

RAISED_PRIORITY = -10  # a nice value


@contextmanager
def raised_priority() -> Iterator[None]:
    """Run the block with a higher priority, where that is allowed, so that a busy machine does not delay it."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with suppress(OSError):
        if before == 0:  # any other value was chosen by the user, and stays
            os.setpriority(os.PRIO_PROCESS, 0, RAISED_PRIORITY)
    try:
        yield
    finally:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, before)


def raise_open_file_limit() -> tuple[int, int]:
    """Raise the limit of open files as far as is allowed, because each mapped file takes two. Return the old limits."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    return before


def list_pids() -> Iterable[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


INITIAL_UID_MAP = ["0", "0", "4294967295"]  # of the first user namespace: all user ids, unchanged


@cache
def in_user_namespace() -> bool:
    """Return True in a user namespace other than the machine's first, whose capabilities do not count for the kernel's events."""
    try:
        with open("/proc/self/uid_map", encoding="utf-8") as users:  # noqa: PTH123 - without pathlib, which takes longer
            return users.read().split() != INITIAL_UID_MAP
    except OSError:  # a kernel without user namespaces
        return False


def describe_root() -> str:
    """Return a phrase for messages: the root user who has all rights on this machine, unlike a user namespace's own root."""
    return "root of the machine, outside of this user namespace" if in_user_namespace() else "root"
