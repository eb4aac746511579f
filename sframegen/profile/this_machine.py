"""What a profile takes of this machine: its turn on the processor, open files, its processes; and who root is here."""

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


ALL_USERS = ["0", "0", "4294967295"]  # the map of the first user namespace


@cache
def in_user_namespace() -> bool:
    """True in a user namespace other than the machine's first: capabilities there are not those of the machine."""
    try:
        with open("/proc/self/uid_map", encoding="utf-8") as users:  # noqa: PTH123 - without pathlib, which takes longer
            return users.read().split() != ALL_USERS
    except OSError:  # a kernel without user namespaces
        return False


def root_in_words() -> str:
    """Who may do what only root may."""
    return "root of the machine, outside of this user namespace" if in_user_namespace() else "root"
