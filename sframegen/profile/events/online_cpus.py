"""The CPUs that run now."""

from __future__ import annotations

from pathlib import Path

ONLINE = Path("/sys/devices/system/cpu/online")


def online_cpus() -> set[int]:
    return cpus_in(ONLINE.read_text())


def cpus_in(text: str) -> set[int]:
    """Return the numbers in a list like `0-3,8`."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus
