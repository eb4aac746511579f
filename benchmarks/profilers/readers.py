"""The stacks in what profilers write, as little of each as counts: how deep, where the outermost frame is, how often."""

from __future__ import annotations

import gzip
import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.profilers.endings import Mapped, Place, linked_place, mapped_place

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

PERF_FRAME = re.compile(r"^\s+([0-9a-f]+) \((.*?)(?:\+0x([0-9a-f]+))?\)$")
KERNEL = 1 << 63
EU_FRAME = re.compile(r"^\* frame (\d+): rel_pc=[0-9a-f]+ raw_pc=([0-9a-f]+) ")
EU_SAMPLE = "find_dwfl "
NOT_USER = ("kernel", "missing")  # kinds of frames in our own JSON
BPFTRACE_FRAME = re.compile(r"^([0-9a-f]+)$")
BPFTRACE_COUNT = re.compile(r"^\]: (\d+)$")


class Sampled(NamedTuple):
    """Equal stacks: `depth` user frames of which the last is at `outermost` (None: in no file that the profiler names).

    `end`: why there are no more, if the profiler says that; `guessed`: the profiler says that it guessed a frame.
    """

    depth: int
    outermost: Place | None
    times: int = 1
    end: str = ""
    guessed: bool = False


def perf_script(lines: Iterable[str]) -> Iterator[Sampled]:
    """`perf script -F pid,tid,ip,dso,dsoff`: a block each sample, with offsets in files; frames of the kernel are left out."""
    depth, outermost, begun = 0, None, False
    for line in lines:
        found = PERF_FRAME.match(line)
        if found:
            address, path = int(found[1], 16), found[2]
            if address < KERNEL and not path.startswith("[kernel"):
                depth, outermost = depth + 1, Place(path, int(found[3] or found[1], 16))
        elif line.strip():
            if begun:
                yield Sampled(depth, outermost)
            depth, outermost, begun = 0, None, True
    if begun:
        yield Sampled(depth, outermost)


def eu_stackprof(lines: Iterable[str], maps: list[Mapped]) -> Iterator[Sampled]:
    """What `eu-stackprof -v -v -v` writes: a line each sample, then one each frame."""
    depth, last, begun = 0, 0, False
    for line in lines:
        if line.startswith(EU_SAMPLE):
            if begun:
                yield Sampled(depth, mapped_place(last, maps))
            depth, last, begun = 0, 0, True
        elif found := EU_FRAME.match(line):
            depth, last = int(found[1]) + 1, int(found[2], 16)
    if begun:
        yield Sampled(depth, mapped_place(last, maps))


def bpftrace(lines: Iterable[str], maps: list[Mapped]) -> Iterator[Sampled]:
    """A map whose keys are `ustack(raw)`: run-time addresses, the innermost first, then how often."""
    depth, last = 0, 0
    for line in lines:
        if found := BPFTRACE_FRAME.match(line):
            depth, last = depth + 1, int(found[1], 16)
        elif counted := BPFTRACE_COUNT.match(line):
            yield Sampled(depth, mapped_place(last, maps), int(counted[1]))
            depth, last = 0, 0


def firefox_profile(file: Path, pids: Collection[int]) -> Iterator[Sampled]:
    """The Firefox Profiler's JSON as samply writes it, also compressed: the threads of some processes."""
    data = file.read_bytes()
    profile: dict[str, Any] = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    for thread in profile["threads"]:
        if int(str(thread["pid"]).partition(".")[0]) in pids:
            yield from _thread(thread, profile["libs"])


def _thread(thread: dict[str, Any], libraries: list[dict[str, Any]]) -> Iterator[Sampled]:
    """`prefix` leads from a stack to its caller's; each comes after its own."""
    stacks, frames = thread["stackTable"], thread["frameTable"]
    ends: list[tuple[int, int]] = []  # of each stack: depth, outermost frame
    for prefix, frame in zip(stacks["prefix"], stacks["frame"], strict=True):
        ends.append((1, frame) if prefix is None else (ends[prefix][0] + 1, ends[prefix][1]))
    for number, weight in zip(thread["samples"]["stack"], thread["samples"]["weight"], strict=True):
        if number is None:
            yield Sampled(0, None, weight)
            continue
        depth, frame = ends[number]
        resource = thread["funcTable"]["resource"][frames["func"][frame]]
        library = thread["resourceTable"]["lib"][resource] if resource >= 0 else None
        address = frames["address"][frame]
        where = None if library is None or address < 0 else linked_place(libraries[library]["path"], address, relative=True)
        yield Sampled(depth, where, weight)


def own_json(file: Path, pids: Collection[int]) -> Iterator[Sampled]:
    """What `sframegen profile --output FILE.json` writes: frames the outermost first. Samples that were lost have no frames."""
    profile: dict[str, Any] = json.loads(file.read_bytes())
    frames = profile["frames"]
    for stack in profile["stacks"]:
        if stack["pid"] in pids:
            user = [frame for number in stack["frames"] if (frame := frames[number])["kind"] not in NOT_USER]
            outermost = user[0] if user and stack["complete"] else None
            where = linked_place(outermost["path"], outermost["address"]) if outermost and outermost["path"] else None
            guessed = any(frame["guessed"] for frame in user)
            yield Sampled(len(user), where, stack["samples"], stack["end"], guessed)
    yield from (Sampled(0, None, count, f"lost: {why}") for why, count in profile["lost"].items() if count)
