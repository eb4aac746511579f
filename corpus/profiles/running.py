"""A workload that runs: its process, which is followed before it begins, and what gives it work."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from corpus.profiles.workloads import as_user
from corpus.stacks.target import Target

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from types import TracebackType

    from corpus.profiles.workloads import Workload

FIRST_STOPS = ("sh", "-c", 'kill -STOP $$; exec "$@"', "sh")


class Running:
    """Within a `with` block. `follow(pid)` is called before the workload's program is started. Raises EndedError."""

    def __init__(self, workload: Workload, folder: Path, rng: random.Random, follow: Callable[[int], None]) -> None:
        here = folder / workload.user
        command = as_user(workload.user, folder, workload.command(folder, rng))
        self._target = Target([*FIRST_STOPS, *command], here)
        self._load: subprocess.Popen[bytes] | None = None
        try:
            self._target.wait_until_stopped()
            follow(self._target.pid)
            os.kill(self._target.pid, signal.SIGCONT)
            if workload.load:
                self._load = subprocess.Popen(
                    as_user(workload.user, folder, workload.load(folder)), cwd=here, start_new_session=True,
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )  # fmt: skip
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        """With all descendants, of which some may have sessions of their own."""
        if self._load:
            with suppress(ProcessLookupError):
                os.killpg(self._load.pid, signal.SIGKILL)
            self._load.wait()
        for pid in descendants(self._target.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._target.end()


def descendants(pid: int) -> list[int]:
    """All that are known now, and not their parent."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    found, todo = [], [pid]
    while todo:
        found += (more := children.get(todo.pop(), []))
        todo += more
    return found
