"""Control groups of version 2: their folders, and their names by the numbers that the kernel gives them."""

from __future__ import annotations

import os
import time
from pathlib import Path

from sframegen.base.errors import SframegenError
from sframegen.base.text import shortened

MOUNTS = Path("/proc/self/mounts")
INTERVAL = 1.0  # seconds between looks at all folders
ROOT = "/"


def mount_point() -> str | None:
    """Return where control groups of version 2 are mounted; None if nowhere."""
    try:
        lines = MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    found = (words[1] for words in map(str.split, lines) if len(words) > 2 and words[2] == "cgroup2")
    return next((place.encode().decode("unicode_escape") for place in found), None)


def folder_of(name: str) -> str:
    """Return the folder of a control group, by its path or as /proc/PID/cgroup names it. Raises SframegenError if it is none."""
    mounted = mount_point()
    if mounted is None:
        raise SframegenError("control groups of version 2 are not mounted")
    for path in (name, os.path.join(mounted, name.lstrip("/"))):  # noqa: PTH118 - a Path would drop what comes before a slash
        real = os.path.realpath(path)
        if (real == mounted or real.startswith(f"{mounted}/")) and Path(real).is_dir():
            return real
    raise SframegenError(f"{shortened(name)}: no control group of version 2; they are in {mounted}")


class CgroupNames:
    """Names as in /proc/PID/cgroup. One that has ended keeps its name if that was asked for before."""

    def __init__(self) -> None:
        self._mounted = mount_point()
        self._names: dict[int, str] = {}
        self._looked = -INTERVAL

    def name(self, number: int) -> str:
        """Return the name; `[cgroup 123]` if it is not known."""
        if number not in self._names and time.monotonic() - self._looked >= INTERVAL:
            self._look()
        return self._names.get(number, f"[cgroup {number}]")

    def _look(self) -> None:
        self._looked = time.monotonic()
        if self._mounted is None:
            return
        for folder, folders, _ in os.walk(self._mounted):
            relative = os.path.relpath(folder, self._mounted)
            try:
                self._names[os.stat(folder).st_ino] = ROOT if relative == "." else f"/{relative}"  # noqa: PTH116
            except OSError:  # it has ended meanwhile
                folders.clear()
