"""A long profile of a whole machine that compiles: memory of profiler and helpers, losses, and the time that each format takes.

    python -m benchmarks.profile_hour --seconds 3600

As root. Compilers run on all processors, at a low priority, so that processes come and go; --as-it-is starts none.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from corpus.churn.profiled import PROFILE
from sframegen.profile.report.formats.file_formats import FORMATS

if TYPE_CHECKING:
    from collections.abc import Iterator

KIB, MIB = 1 << 10, 1 << 20
ENDINGS = (".html", ".pb.gz", ".json", ".folded")  # those with the time of each sample are asked for by name
SOURCES = ("<regex>", "<map>", "<algorithm>", "<iostream>", "<future>", "<unordered_map>", "<random>", "<filesystem>")
MOMENTS = 60  # at which the memory is measured
MINUTES_TO_WRITE = 20
FIELDS = ("Pss", "Pss_Anon", "Pss_Shmem")  # of smaps_rollup: what several processes share counts once


class Use(NamedTuple):
    """Resident memory in bytes, of the profiler and its helpers: in all, and what has no file. BPF maps count as files."""

    seconds: float
    resident: int
    anonymous: int


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile_hour", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3600.0, help="of sampling (default %(default)s)")
    parser.add_argument("--frequency", type=int, default=999)
    parser.add_argument("--by", default="pid")
    parser.add_argument("--as-it-is", action="store_true", help="start no compilers")
    parser.add_argument("--endings", nargs="*", default=ENDINGS, choices=FORMATS)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # compilers and profiler end with this one
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name, nullcontext() if options.as_it_is else compiling(Path(name)):
        outputs = [Path(name, f"profile{ending}") for ending in options.endings]
        arguments = ["--system", "-F", options.frequency, "--by", options.by, "--duration", options.seconds]
        command = [*PROFILE, *arguments, *(word for one in outputs for word in ("-o", one))]
        print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors: {' '.join(map(str, command[3:]))}")
        began = time.time()
        with ExitStack() as running:
            process = running.enter_context(subprocess.Popen([*map(str, command)], stderr=subprocess.PIPE, text=True))
            running.callback(process.kill)
            uses = list(watched(process, options.seconds))
            said = process.communicate()[1]
        print(said, end="")
        if not uses or process.returncode:
            return 1
        for label, writes in (("sampling", False), ("writing", True)):
            found = [use for use in uses if (use.seconds > options.seconds) == writes]
            if found:
                print(f"{label}: at most {max(use.resident for use in found) / MIB:.0f} MiB resident,", end=" ")
                print(f"{max(use.anonymous for use in found) / MIB:.0f} MiB of them in no file")
        for use in uses[:: max(1, len(uses) // 15)]:
            print(f"  after {use.seconds:6.0f} s: {use.resident / MIB:5.0f} MiB, {use.anonymous / MIB:5.0f} MiB in no file")
        before = began + options.seconds
        for path in sorted(outputs, key=lambda path: path.stat().st_mtime):
            written = path.stat().st_mtime
            print(f"  {path.name}: {path.stat().st_size / 1e6:.1f} MB after {written - before:.1f} s")
            before = written
        return process.returncode


@contextmanager
def compiling(folder: Path) -> Iterator[None]:
    """Within the block, compilers run on all processors."""
    for number, header in enumerate(SOURCES):
        Path(folder, f"{number}.cc").write_text(f"#include {header}\n#include <string>\nint f{number}() {{ return {number}; }}\n")
    script = 'while :; do for file in "$0"/*.cc; do g++ -O2 -c "$file" -o /dev/null; done; done'
    with ExitStack() as running:
        for _ in range(os.cpu_count() or 1):
            process = subprocess.Popen(["nice", "-n", "10", "sh", "-c", script, folder], start_new_session=True)
            running.callback(process.wait)
            running.callback(os.killpg, process.pid, signal.SIGKILL)
        yield


def watched(process: subprocess.Popen[str], seconds: float) -> Iterator[Use]:
    """Measure until the process ends."""
    began, interval = time.monotonic(), min(seconds / MOMENTS, 1.0)
    while process.poll() is None and time.monotonic() - began < seconds + 60 * MINUTES_TO_WRITE:
        time.sleep(interval)
        found = [memory_of(pid) for pid in family_of(process.pid)]
        yield Use(time.monotonic() - began, *map(sum, zip(*found, strict=True)))


def family_of(pid: int) -> list[int]:
    """Return the process and its descendants, each of which one of its threads has started."""
    family = [pid]
    for one in family:
        for path in Path(f"/proc/{one}/task").glob("*/children"):
            with suppress(OSError):
                family += map(int, path.read_text().split())
    return family


def memory_of(pid: int) -> tuple[int, int]:
    try:
        lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if "kB" in line)
    except OSError:
        return 0, 0
    resident, anonymous, shared = (KIB * int(lines[field].split()[0]) if field in lines else 0 for field in FIELDS)
    return resident, anonymous + shared


if __name__ == "__main__":
    sys.exit(main())
