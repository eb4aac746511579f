"""The data that a session collects: stacks with counts, and lost samples. The report adds the names of functions later."""

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

GET_FILE = attrgetter("file")
FILE_NUMBERS = FILE_MASK + 1  # possible file numbers in packed frames, including NO_FILE, KERNEL_FILE and OFF_CPU_FILE

MICROSECOND = 1000  # nanoseconds
SECOND = 1_000_000  # microseconds


class Unit(Enum):
    """The unit of a profile's counts: time if it includes off-CPU time, else samples. Values are the names in output formats."""

    SAMPLES = "samples"
    MICROSECONDS = "microseconds"

    def describe(self, number: int) -> str:
        return format_count(number, "sample") if self is Unit.SAMPLES else f"{number / SECOND:,.3f} s"


class Stack(NamedTuple):
    """A stack and its samples. `frames`: packed, the innermost first; kernel frames come before user frames."""

    pid: int
    tid: int  # 0 if the profile does not distinguish threads
    frames: tuple[int, ...]
    end: End
    samples: int


class Stacks:
    """The stacks of a profile, in a tree. `samples`: the sum of all counts."""

    def __init__(self, *, room: Room | None = None) -> None:
        self.room = room or Room()
        self.tree = CallTree(self.room)
        self.frames = PackedFrames(self.room, FILE_NUMBERS)
        self.tasks = SampledTasks()
        self.samples = 0

    def find_or_add(self, task: int, frames: Column, end: End) -> int:
        """Return the row of a stack of packed frames (innermost first), adding it if it is new. Raises OSError, MemoryError."""
        node = self.frames.add(self.tree, frames, self.tasks[task].pid)
        return self.tree.find_or_add_row(node, end, task)

    def add_samples(self, row: int, samples: int = 1) -> None:
        self.tree.add_samples(row, samples)
        self.samples += samples

    def keep_threads(self, tids: frozenset[int]) -> None:
        """Drop the samples of all other threads. If `tids` is empty, keep all."""
        tree = self.tree
        for row, task in enumerate(tree.rows.second[: tree.rows.count]) if tids else ():
            if self.tasks[task].tid not in tids:
                self.samples -= tree.samples[row]
                tree.samples[row] = 0

    def used_files(self) -> set[int]:
        """Return the numbers of all files in the stacks."""
        return {number for number, used in enumerate(bytes(self.frames.used)) if used}

    def close(self) -> None:
        """Free the memory of frames and of the tree, once the report has named them."""
        for numbered in (self.frames.numbers, self.tree.nodes, self.tree.rows):
            numbered.close()

    def __iter__(self) -> Iterator[Stack]:
        """Yield the stacks that have samples, in the order in which they were added."""
        return (self.stack(row) for row in range(self.tree.rows.count) if self.tree.samples[row])

    def stack(self, row: int) -> Stack:
        """Return the stack of a row, with its frames from the innermost one to the root."""
        tree, nodes, frames, node = self.tree, self.tree.nodes, [], self.tree.node_of(row)
        while node:
            frames.append(self.frames.numbers.first[nodes.first[node]])
            node = nodes.second[node]
        pid, tid, _, _ = self.tasks[tree.rows.second[row]]
        return Stack(pid, tid, tuple(frames), End(tree.end_of(row)), tree.samples[row])


@dataclass
class Collected:
    """A profile without function names. `event`, `backend`: as reports show them. `lost`: samples without a stack, by reason."""

    event: str
    backend: str
    frequency: int
    unit: Unit = Unit.SAMPLES  # of all counts
    started: float = 0.0  # seconds since 1970
    seconds: float = 0.0  # duration of sampling
    stacks: Stacks = field(default_factory=Stacks)
    lost: Counter[str] = field(default_factory=Counter)
    files: dict[int, TracedFile] = field(default_factory=dict)  # by the number in packed frames
    # Perf maps by pid, of processes with code in no file: opened while the process runs, so that they can be read after its end.
    perf_maps: dict[int, PerfMap] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # lines on damaged files, and on limits that were reached

    def open_perf_map(self, pid: int, spans: Sequence[CodeSpan]) -> None:
        """Open the perf map of a running process that has code in no file. `spans`: all code of the process."""
        if pid not in self.perf_maps and not all(map(GET_FILE, spans)):
            self.perf_maps[pid] = PerfMap(pid)

    def read_perf_map(self, pid: int) -> None:
        """Read the perf map of a process that has ended, if one was opened. It is kept if a name or note comes from it."""
        if (names := self.perf_maps.get(pid)) and not (names.end() or names.is_ignored):
            del self.perf_maps[pid]

    def keep_threads(self, tids: frozenset[int]) -> None:
        """Drop the samples of all other threads, and note each of `tids` that has no samples. If `tids` is empty, keep all."""
        self.stacks.keep_threads(tids)
        if tids:
            sampled = {stack.tid for stack in self.stacks}
            self.notes += [f"thread {tid}: no samples" for tid in sorted(tids - sampled)]


def list_file_notes(collected: Collected) -> list[str]:
    """Return a line for each reason why files in the stacks have no table, or one with derived rules."""
    paths: dict[str, list[str]] = {}
    for number in sorted(collected.stacks.used_files() & collected.files.keys()):
        if why := collected.files[number].why:
            paths.setdefault(why, []).append(collected.files[number].path)
    return [f"{format_first(found)}: {why}" for why, found in paths.items()]
