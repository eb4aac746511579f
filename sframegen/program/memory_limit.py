"""A limit on the memory of a process that reads what others have made."""

from __future__ import annotations

import resource


def limit_memory(most: int) -> None:
    """Let this process have at most that many bytes more than it has, and no more than its limit now; and leave no core file."""
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - without pathlib, which takes longer
        pages = int(file.read().split()[0])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit, allowed = pages * resource.getpagesize() + most, resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (limit if allowed == resource.RLIM_INFINITY else min(limit, allowed),) * 2)
