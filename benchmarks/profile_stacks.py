"""A made-up profile with very many stacks, as an hour of a busy machine has: memory and seconds of its names and of each format.

    python -m benchmarks.profile_stacks --stacks 6500000

All stacks are of one program, and have 20 to 30 frames. Each differs from the one before only in its innermost frames.
A process has a few hundred stacks.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import threading
import time
from array import array
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.profile_hour import ENDINGS, MIB, memory_of
from sframegen.elf.file import open_elf
from sframegen.profile.collected import Collected
from sframegen.profile.following.files import TracedFile
from sframegen.profile.packed_frames import FileFrame
from sframegen.profile.report.formats.file_formats import write_profile
from sframegen.profile.report.grouping import group_stacks
from sframegen.profile.report.naming import name_stacks
from sframegen.program.unused_memory import share_heap
from sframegen.stack.walking.ends import End

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = sys.executable
ADDRESSES, HOT = 60_000, 3_000  # in code: all, and those of four frames in five
REST = 50_000  # stacks, after which the memory goes that files have: as in each second of a profile
CUT_OFF = 50  # stacks, of which one is incomplete
LOOKS = 0.05  # seconds between two looks at the memory


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile_stacks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--stacks", type=int, default=6_500_000, help="their number (default %(default)s)")
    options = parser.parse_args()
    share_heap()
    print(f"load average {os.getloadavg()[0]:.1f}; at most MiB resident, MiB of them in no file; seconds")
    with measured("collected"):
        collected = made_up(options.stacks)
    tree = collected.stacks.tree
    print(f"  {tree.rows.count:,} stacks, {tree.nodes.count:,} nodes")
    with measured("named"):
        named = name_stacks(collected)
        collected.stacks.close()
        group_stacks(named, "pid")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        for ending in ENDINGS:
            path = Path(folder, f"profile{ending}")
            with measured(ending):
                write_profile(named, str(path))
            print(f"  {path.stat().st_size / 1e6:.1f} MB")


def made_up(count: int) -> Collected:
    """The same ones each time."""
    chosen = random.Random(1)  # noqa: S311 - no secrets
    profile = Collected("cpu-clock", "made up", 999, started=time.time(), seconds=3600.0)
    elf = open_elf(Path(PROGRAM).resolve())
    profile.files[1] = TracedFile(1, PROGRAM, elf)
    start, size = next((one.header.sh_addr, one.header.sh_size) for one in elf.sections if one.name == ".text")
    addresses = [FileFrame(1, start + chosen.randrange(size)).packed() for _ in range(ADDRESSES)]
    hot, stack, task, left = addresses[:HOT], addresses[:25], 0, 0
    for number in range(count):
        if not left:
            left, pid = chosen.randrange(200, 900), 1000 + number
            task = profile.stacks.tasks.number(pid, 0)
            profile.stacks.tasks.name(task, "program", "")
        left -= 1
        del stack[max(4, len(stack) - chosen.choice((1, 1, 2, 2, 3, 4, 6, 9))) :]
        while len(stack) < chosen.choice((20, 25, 30)):
            stack.append(chosen.choice(hot if chosen.random() < 0.8 else addresses))
        end = End.OUTERMOST if number % CUT_OFF else End.NO_RULE
        profile.stacks.count(profile.stacks.row(task, array("Q", reversed(stack)), end))
        if number % REST == 0:
            profile.stacks.room.rest()
    profile.stacks.room.rest()
    return profile


@contextmanager
def measured(label: str) -> Iterator[None]:
    """Print the most memory within the block, and how long it took."""
    found: list[tuple[int, int]] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(LOOKS):
            found.append(memory_of(os.getpid()))

    looking = threading.Thread(target=look)
    looking.start()
    began = time.monotonic()
    yield
    seconds = time.monotonic() - began
    ended.set()
    looking.join()
    most = [max(values) / MIB for values in zip(*(found or [memory_of(os.getpid())]), strict=True)]
    print(f"{label}: {most[0]:.0f} MiB, {most[1]:.0f} in no file; {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
