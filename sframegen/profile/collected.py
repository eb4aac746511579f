"""The data that a backend has collected: stacks with counts, and lost samples. Names come later, from report/."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from sframegen.base.text import format_count, format_first
from sframegen.profile.packed_frames import FILE_MASK
from sframegen.profile.stacks.call_tree import CallTree, PackedFrames
from sframegen.profile.stacks.growing import Room
from sframegen.profile.stacks.tasks import SampledTasks
from sframegen.stack.names.perf_map import PerfMap
from sframegen.stack.walking.frames import End

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sframegen.base.columns import Column
    from sframegen.profile.following.files import CodeSpan, TracedFile

FILE_OF = attrgetter("file")
FILES = FILE_MASK + 1  # file numbers in packed frames, including those of no file, the kernel and off-CPU reasons

MICROSECOND = 1000  # nanoseconds
SECOND = 1_000_000  # microseconds


class Unit(Enum):
    """The unit of a profile's counts: time if it has off-CPU time, else samples. The value is the name in formats."""

    SAMPLES = "samples"
    MICROSECONDS = "microseconds"

    def words(self, number: int) -> str:
        """Return a number with its unit, for users."""
        return format_count(number, "sample") if self is Unit.SAMPLES else f"{number / SECOND:,.3f} s"


class Stack(NamedTuple):
    """A stack and its samples. `frames`: packed, the innermost first; kernel frames come before user frames."""

    pid: int
    tid: int  # 0 if threads are not told apart
    frames: tuple[int, ...]
    end: End
    samples: int


class Stacks:
    """The stacks of a profile, in a tree."""

    def __init__(self, *, room: Room | None = None) -> None:
        self.room = room or Room()
        self.tree = CallTree(self.room)
        self.frames = PackedFrames(self.room, FILES)
        self.tasks = SampledTasks()
        self.samples = 0

    def row(self, task: int, frames: Column, end: End) -> int:
        """Return the row of a packed stack, the innermost frame first; a new row has no samples. Raises OSError, MemoryError."""
        node = self.frames.add(self.tree, frames, self.tasks[task].pid)
        return self.tree.row(node, end, task)

    def count(self, row: int, samples: int = 1) -> None:
        self.tree.count(row, samples)
        self.samples += samples

    def keep_threads(self, tids: frozenset[int]) -> None:
        """Drop the samples of all other threads; of none if there are no `tids`."""
        if not tids:
            return
        tree = self.tree
        for row, task in enumerate(tree.rows.second[: tree.rows.count]):
            if self.tasks[task].tid not in tids:
                self.samples -= tree.samples[row]
                tree.samples[row] = 0

    def used_files(self) -> set[int]:
        """Return the numbers of all files in the stacks."""
        return {number for number, used in enumerate(bytes(self.frames.used)) if used}

    def close(self) -> None:
        """Free the memory of frames and of the tree, once they have names."""
        for numbered in (self.frames.numbers, self.tree.nodes, self.tree.rows):
            numbered.close()

    def __iter__(self) -> Iterator[Stack]:
        """Yield the stacks that have samples, in the order in which they came."""
        return (self.stack(row) for row in range(self.tree.rows.count) if self.tree.samples[row])

    def stack(self, row: int) -> Stack:
        tree, nodes, frames, node = self.tree, self.tree.nodes, [], self.tree.node_of(row)
        while node:
            frames.append(self.frames.numbers.first[nodes.first[node]])
            node = nodes.second[node]
        pid, tid, _, _ = self.tasks[tree.rows.second[row]]
        return Stack(pid, tid, tuple(frames), End(tree.end_of(row)), tree.samples[row])


@dataclass
class Collected:
    """A profile without names. `event`: the user's name. `backend`: for the report. `lost`: samples without a stack, by reason."""

    event: str
    backend: str
    frequency: int
    unit: Unit = Unit.SAMPLES  # of all counts
    started: float = 0.0  # seconds since 1970
    seconds: float = 0.0  # how long it sampled
    stacks: Stacks = field(default_factory=Stacks)
    lost: Counter[str] = field(default_factory=Counter)
    files: dict[int, TracedFile] = field(default_factory=dict)  # by the number in packed frames
    # By pid, of processes with code in no file: made while the process runs, for its names to be read after its end.
    perf_maps: dict[int, PerfMap] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # of files that are damaged, of limits that were reached

    def keep_names(self, pid: int, spans: Sequence[CodeSpan]) -> None:
        """Prepare to read a running process's perf map after its end, if it makes code. `spans`: of all of its code."""
        if pid not in self.perf_maps and not all(map(FILE_OF, spans)):
            self.perf_maps[pid] = PerfMap(pid)

    def end_names(self, pid: int) -> None:
        """Read the perf map of a process that has ended."""
        if (names := self.perf_maps.get(pid)) and not names.end():
            del self.perf_maps[pid]

    def keep_threads(self, tids: frozenset[int]) -> None:
        """Drop the samples of all other threads; of none if there are no `tids`. A note names those without samples."""
        self.stacks.keep_threads(tids)
        if tids:
            seen = {stack.tid for stack in self.stacks}
            self.notes += [f"thread {tid}: no samples" for tid in sorted(tids - seen)]


def notes_on_files(collected: Collected) -> list[str]:
    """Return a line for each reason why tables of files in the stacks are missing, or were made in another way."""
    paths: dict[str, list[str]] = {}
    for number in sorted(collected.stacks.used_files() & collected.files.keys()):
        if why := collected.files[number].why:
            paths.setdefault(why, []).append(collected.files[number].path)
    return [f"{format_first(found)}: {why}" for why, found in paths.items()]
