"""Root of the machine, and root of a user namespace, which is another one."""

from __future__ import annotations

from functools import cache

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
