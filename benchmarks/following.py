"""What it costs to follow all processes of a machine: short-lived ones, records alone, and a process with many files.

usage: python -m benchmarks.following [PROCESSES]    Prints the figures. Needs root, or kernel.perf_event_paranoid of at most 0.
"""

from __future__ import annotations

import mmap
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sframegen.profile.events.event_records import CommRecord, MmapRecord, TaskRecord
from sframegen.profile.following.files import CodeSpan
from sframegen.profile.following.follower import Follower
from sframegen.profile.following.processes import Processes

if TYPE_CHECKING:
    from collections.abc import Callable

PROCESSES = 10_000
AT_A_TIME = 50
MADE = 100_000
FILES = 1_000
TRUE = "/bin/true"


class _NoFiles:
    def spans_of(self, record: MmapRecord, _time: int) -> list[CodeSpan]:
        return [CodeSpan(record.start, record.end, 0, 1)]


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else PROCESSES
    follower = Follower()
    short_lived(follower, count)
    many_files(follower)
    follower.close()
    follower.files.close()
    records_alone()


def short_lived(follower: Follower, count: int) -> None:
    """Processes that execute a program and end: CPU time of the one that follows, and its memory after each half."""
    records, ours, started = follower.records, 0.0, time.perf_counter()
    sizes: list[int] = []
    for first in range(0, count, AT_A_TIME):
        for _ in range(AT_A_TIME):
            os.posix_spawn(TRUE, [TRUE], {})
        for _ in range(AT_A_TIME):
            os.wait()
        ours += _cpu_seconds(follower.drain)
        if first >= count // 2 * len(sizes):
            sizes.append(_anonymous())
    sizes.append(_anonymous())
    records = follower.records - records
    wall = time.perf_counter() - started
    print(f"{count:,} processes execute {TRUE} ({wall:.1f} s): {records:,} records, {follower.lost:,} lost")
    print(f"  CPU time to follow them: {ours:.2f} s, {1e6 * ours / count:.0f} µs a process, {1e6 * ours / records:.1f} µs a record")
    print(f"  anonymous memory: {', '.join(f'{size / 1e6:.1f}' for size in sizes)} MB (begin, middle, end)")


def many_files(follower: Follower) -> None:
    """Map many files here: one reading of /proc, descriptors and memory."""
    with tempfile.TemporaryDirectory() as folder:
        maps = []
        for number in range(FILES):
            path = Path(folder, str(number))
            shutil.copy(TRUE, path)
            with path.open("rb") as file:
                maps.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_EXEC))
        before = _anonymous(), _descriptors()
        seconds = [_cpu_seconds(lambda: follower.scan(os.getpid())) for _ in range(2)]
        memory, descriptors = _anonymous() - before[0], _descriptors() - before[1]
        print(f"{FILES:,} files of a process: {seconds[0]:.3f} s to read and open them, {seconds[1]:.3f} s to read them again")
        print(
            f"  {descriptors:,} descriptors, {memory / 1e6:.1f} MB; {_cpu_seconds(follower.check_files) * 1e3:.1f} ms to check all"
        )


def records_alone() -> None:
    """Made records: the state of processes without files."""
    processes = Processes(_NoFiles())

    def apply() -> None:
        for number in range(MADE // 8):
            pid, at = 10_000_000 + number, number + 1
            processes.apply(TaskRecord(True, pid, pid - 1, pid, pid - 1), at)
            processes.apply(CommRecord(pid, pid, "true", by_exec=True), at)
            for start in range(5):
                processes.apply(MmapRecord(pid, pid, start << 12, start + 1 << 12, 0, executable=True, path="/x", inode=1), at)
            processes.apply(TaskRecord(False, pid, 1, pid, 1), at)

    print(f"records alone: {MADE / _cpu_seconds(apply):,.0f} a second")


def _cpu_seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def _anonymous() -> int:
    """Return bytes of this process's own memory."""
    found = re.search(r"^RssAnon:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1]) << 10 if found else 0


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


if __name__ == "__main__":
    main()
