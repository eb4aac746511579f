"""A machine that is profiled day and night, a file each minute: what the profiler costs, and what a day of files costs.

    python -m benchmarks.profile_day --seconds 3600

As root. Compilers run on all processors, so that processes come and go; --as-it-is starts none. --steady starts a program for each
processor that runs all the time, and samples only those: what a machine costs where nothing else begins. A day is 1,440 copies of
the recorded files, with other times in their names.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.measure import run
from benchmarks.profile_hour import MIB, compiling, family_of, memory_of
from corpus.churn.profiled import PROFILE
from sframegen.profile.stored.intervals import intervals_in, name_of

if TYPE_CHECKING:
    from collections.abc import Iterator

DAY = 86400
OLD = 100  # files of before that day, which --keep removes
ENDINGS = (".html", ".pb.gz")
ENDS = 3  # of intervals: at least one in each half, and the first
QUIETLY = ("sh", "-c", 'exec "$@" 2>/dev/null', "sh")
STEADY = "import json\nwhile True:\n    json.loads(json.dumps(sorted(map(str, range(1000)))))"
LOOKS = 4  # at the memory, in each interval
TICKS = os.sysconf("SC_CLK_TCK")
UTIME, CSTIME = 11, 14  # in what follows the name in /proc/PID/stat: user and system time, own and that of children that have ended


class Interval(NamedTuple):
    """`seconds`: since the begin; `busy`: seconds of CPU time in all until then; bytes."""

    seconds: float
    busy: float
    resident: int
    anonymous: int


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile_day", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3600.0, help="of sampling (default %(default)s)")
    parser.add_argument("--every", type=int, default=60, help="seconds of an interval (default %(default)s)")
    parser.add_argument("--frequency", type=int, default=99)
    parser.add_argument("--as-it-is", action="store_true", help="start no compilers")
    parser.add_argument("--steady", action="store_true", help="sample only programs that run all the time")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # all that is begun here ends with this one
    with ExitStack() as running:
        name = running.enter_context(tempfile.TemporaryDirectory(dir="/var/tmp"))
        folder = Path(name, "profiles")
        if not options.as_it_is and not options.steady:
            running.enter_context(compiling(Path(name)))
        sampled = running.enter_context(steady()) if options.steady else ["--system"]
        arguments = [*sampled, "--every", options.every, "-F", options.frequency, "--duration", options.seconds, "-o", folder]
        command = [*PROFILE, *map(str, arguments)]
        print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors: {' '.join(command[3:-1])} DIR", flush=True)
        process = running.enter_context(subprocess.Popen(command))
        running.callback(process.kill)
        found = list(watched(process, options.every))
        if process.wait() or len(found) < ENDS:
            return 1
        show_run(found, folder)
        if options.steady:
            return 0
        show_day(folder, Path(name, "day"), options.every)
    return 0


@contextmanager
def steady() -> Iterator[list[int]]:
    """Within the block, a program runs on each processor: the numbers of their processes."""
    with ExitStack() as running:
        pids = []
        for _ in range(os.cpu_count() or 1):
            process = subprocess.Popen([sys.executable, "-c", STEADY])
            running.callback(process.wait)
            running.callback(process.kill)
            pids.append(process.pid)
        yield pids


def watched(process: subprocess.Popen[bytes], every: int) -> Iterator[Interval]:
    """Return what was used at the end of each interval, until the process ends."""
    began, looks, forks_before = time.monotonic(), 0, new_processes()
    resident = anonymous = 0
    while process.poll() is None:
        looks += 1
        time.sleep(max(0.0, began + looks * every / LOOKS - time.monotonic()))
        pids = family_of(process.pid)
        now = [sum(values) for values in zip(*map(memory_of, pids), strict=True)]
        resident, anonymous = max(resident, now[0]), max(anonymous, now[1])
        busy = sum(map(busy_seconds, pids))
        if looks % LOOKS == 0 and busy:
            one = Interval(time.monotonic() - began, busy, resident, anonymous)
            forks, forks_before = new_processes() - forks_before, new_processes()
            around = f"load {os.getloadavg()[0]:.1f}, {forks:,} new processes and threads"
            print(f"  {one.seconds:6.0f} s: {one.busy:7.2f} s of CPU time, {in_mib(resident, anonymous)}; {around}", flush=True)
            yield one
            resident = anonymous = 0


def in_mib(resident: float, anonymous: float) -> str:
    return f"{resident / MIB:.0f} MiB, {anonymous / MIB:.0f} of them in no file"


def new_processes() -> int:
    """Return how many processes and threads this machine has started since it runs."""
    lines = Path("/proc/stat").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("processes "))


def busy_seconds(pid: int) -> float:
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, words[UTIME : CSTIME + 1])) / TICKS


def show_run(found: list[Interval], folder: Path) -> None:
    """Print the first half against the second one: what grows with the time is larger there. The first interval is in neither."""
    middle = len(found) // 2
    sizes = [path.stat().st_size for path in sorted(folder.iterdir())]
    print(f"until the end of the first interval: {found[0].busy:.2f} s of CPU time")
    for label, part in (("first half", found[: middle + 1]), ("second half", found[middle:])):
        share = (part[-1].busy - part[0].busy) / (part[-1].seconds - part[0].seconds)
        usual = in_mib(mean(one.resident for one in part[1:]), mean(one.anonymous for one in part[1:]))
        most = in_mib(max(one.resident for one in part[1:]), max(one.anonymous for one in part[1:]))
        print(f"{label}: {100 * share:.2f} % of a CPU; {usual} in the mean, at most {most}")
    kilobytes = [f"{size / 1e3:.0f}" for size in (min(sizes), max(sizes), mean(sizes))]
    print("{} files of {} to {} kB, {} in the mean".format(len(sizes), *kilobytes))


def show_day(recorded: Path, day: Path, every: int) -> None:
    """Fill a directory with copies; print what removing the old ones and merging the others cost."""
    day.mkdir(mode=0o700)
    files, number, now = (
        [recorded / one.name for one in intervals_in(path.name for path in recorded.iterdir())],
        DAY // every,
        time.time(),
    )
    for index in range(number + OLD):
        shutil.copy(files[index % len(files)], day / name_of(now - (index + 1) * every, every))
    arguments = ["--system", "--every", "1", "--keep", f"{DAY}s", "-d", "3", "-o", day]
    subprocess.run([*PROFILE, *map(str, arguments)], check=True, stderr=subprocess.DEVNULL)
    left = intervals_in(path.name for path in day.iterdir())
    size = sum(path.stat().st_size for path in day.iterdir())
    print(f"a day: of {number + OLD:,} files --keep has left {len(left):,}, {size / 1e6:.0f} MB", flush=True)
    report = [*PROFILE[:-1], "profile-report"]
    for label, last in (("an hour", 3600), ("a day", DAY)):
        for ending in ENDINGS:
            used = run([*QUIETLY, *report, "--from", f"{last}s", "-o", recorded.with_suffix(ending), str(day)])
            seconds = f"{used.wall_seconds:.1f} s, {used.cpu_seconds:.1f} of CPU time"
            print(f"  {label} merged as {ending}: {seconds}, {used.peak_bytes / MIB:.0f} MiB", flush=True)


if __name__ == "__main__":
    sys.exit(main())
