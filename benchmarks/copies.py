"""Copies of stacks that perf recorded: how many reach the outermost frame, and how long that takes, beside `perf script`.

usage: python -m benchmarks.copies [BYTES [COMMAND...]]    by default 65528 bytes, of clang or g++ at work

perf records once; both read that file. Frames are compared sample by sample, as link-time addresses or offsets in the file.
"""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, NamedTuple

from sframegen.profile.copies.counting import Wanted
from sframegen.profile.copies.perf_data import read_perf_data
from sframegen.profile.packed_frames import unpacked_frame
from sframegen.profile.walk.copied_stack import CopyWalker
from sframegen.program.build import build_kind
from sframegen.stack.walking.ends import COMPLETE

if TYPE_CHECKING:
    from collections.abc import Callable

    from sframegen.profile.collected import Collected, Stack
    from sframegen.stack.walking.ends import End

FREQUENCY = 499
SOURCE = """
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <regex>
int main() { std::map<int, std::function<void()>> all; std::cout << std::regex_replace(std::string("a"), std::regex("b"), "c"); }
"""
HEAD = re.compile(r"^\s*(\d+)\s+(\d+)\.(\d{6}):")
NOWHERE = (1 << 64) - 1  # perf's last frame where its walk failed
LENGTHS = {-1: "perf's is shorter", 0: "equally long", 1: "perf's is longer"}
Key = tuple[int, int]  # thread, microseconds


class Timed(NamedTuple):
    """`seconds`: of CPU time, with those of the processes that it started."""

    stacks: dict[Key, list[int]]
    seconds: float

    @property
    def frames(self) -> int:
        return sum(map(len, self.stacks.values()))


class Walking:
    """Measures the walks, from now on."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._walk = CopyWalker.walk
        CopyWalker.walk = self  # type: ignore[method-assign, assignment]

    def __get__(self, walker: CopyWalker, _kind: type[CopyWalker]) -> Callable[..., End]:
        return partial(self, walker)

    def __call__(self, *arguments: Any) -> End:  # noqa: ANN401 - those of CopyWalker.walk
        began = perf_counter()
        end = self._walk(*arguments)
        self.seconds += perf_counter() - began
        return end


def main() -> None:
    size, *command = sys.argv[1:] or ["65528"]
    with tempfile.TemporaryDirectory() as scratch:
        source, data = Path(scratch, "input.cpp"), Path(scratch, "perf.data")
        source.write_text(SOURCE)
        compiler = next(filter(None, map(shutil.which, ("clang++-14", "clang++", "g++"))), "c++")
        command = command or [compiler, "-O2", "-c", "-o", "/dev/null", str(source)]
        record = [
            "perf",
            "record",
            "-q",
            "-o",
            str(data),
            "-F",
            str(FREQUENCY),
            "-e",
            "cpu-clock:u",
            "--call-graph",
            f"dwarf,{size}",
        ]
        subprocess.run([*record, *command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        walking = Walking()
        began = process_time() + children_time()
        collected = read_perf_data(data, Wanted(moments=True))
        ours = Timed(stacks_of(collected), process_time() + children_time() - began)
        alone = Timed(ours.stacks, walking.seconds)
        perf = perf_script(data)
        megabytes = data.stat().st_size / 1e6
    print(f"{' '.join(command)}, {build_kind()}:")
    print(f"{len(ours.stacks)} samples with copies of {size} bytes, {megabytes:.0f} MB")
    moments = sampled(collected)
    complete = {key for key, stack in moments if stack.end in COMPLETE}
    print(f"ours: {len(complete)} of {len(moments)} reach the outermost frame; ends {ends(collected)}; lost {dict(collected.lost)}")
    for name, timed in (("ours, all of it", ours), ("ours, the walks alone", alone), ("perf script", perf)):
        print(f"{name}: {timed.seconds:.2f} s, {timed.frames} frames, {1e6 * timed.seconds / max(timed.frames, 1):.2f} µs a frame")
    compare(ours, perf, complete, collected)


def compare(ours: Timed, perf: Timed, complete: set[Key], collected: Collected) -> None:
    """Print how many stacks are the same, and what comes first where they differ."""
    found: Counter[str] = Counter()
    for key in ours.stacks.keys() & perf.stacks.keys():
        mine, theirs = ours.stacks[key], perf.stacks[key]
        common = min(len(mine), len(theirs))
        what = "equal as far as both go" if same(mine[:common], theirs[:common], collected) else "different"
        length = (
            "perf's is shorter" if len(theirs) < len(mine) else "perf's is longer" if len(theirs) > len(mine) else "equally long"
        )
        found[f"{what}, {length}{', ours complete' if key in complete else ''}"] += 1
    for what, count in found.most_common():
        print(f"  {count} stacks: {what}")


def same(mine: list[int], theirs: list[int], collected: Collected) -> bool:
    return all(address in places(frame, collected) for frame, address in zip(mine, theirs, strict=True))


def places(packed: int, collected: Collected) -> set[int]:
    """What perf may print for a frame: the link-time address, or the offset in the file."""
    frame = unpacked_frame(packed)
    elf = collected.files[frame.file].elf if frame.file else None
    loads = elf.executable_loads() if elf else []
    return {frame.address} | {frame.address - load.p_vaddr + load.p_offset for load in loads}


def stacks_of(collected: Collected) -> dict[Key, list[int]]:
    return {key: list(stack.frames) for key, stack in sampled(collected)}


def sampled(collected: Collected) -> list[tuple[Key, Stack]]:
    found = ((nanoseconds, collected.stacks.stack(row)) for nanoseconds, _, row in collected.stacks.moments or ())
    return [(key_of(stack.tid, nanoseconds), stack) for nanoseconds, stack in found]


def key_of(tid: int, nanoseconds: int) -> Key:
    return tid, nanoseconds // 1000


def ends(collected: Collected) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for stack in collected.stacks:
        counted[stack.end.name] += stack.samples
    return dict(counted)


def perf_script(data: Path) -> Timed:
    command = ["perf", "script", "-i", str(data), "-F", "tid,time,ip", "--no-inline"]
    began = children_time()
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seconds = children_time() - began
    stacks: dict[Key, list[int]] = {}
    frames: list[int] = []
    for line in output.splitlines():
        if head := HEAD.match(line):
            frames = stacks[int(head[1]), int(head[2]) * 1_000_000 + int(head[3])] = []
        elif line.strip():
            address = int(line, 16)
            if address != NOWHERE:
                frames.append(address)
    return Timed(stacks, seconds)


def children_time() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
