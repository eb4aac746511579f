"""What a backend has collected: stacks with their counts, and what was lost. Names come later, from report/."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from sframegen.profile.packed_frames import files_in_frames

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sframegen.profile.following.files import TracedFile
    from sframegen.stack.names.perf_map import PerfMap
    from sframegen.stack.walking.ends import End


class Stack(NamedTuple):
    """Make it with `of`. Its frames are kept as bytes: in an hour of a busy machine there are hundreds of thousands of stacks."""

    pid: int
    tid: int  # 0 if threads are not told apart
    words: bytes
    end: End

    @classmethod
    def of(cls, pid: int, tid: int, frames: Iterable[int], end: End) -> Stack:
        """`frames`: packed, the innermost first; kernel frames come before user frames."""
        return cls(pid, tid, array("Q", frames).tobytes(), end)

    @property
    def frames(self) -> tuple[int, ...]:
        return tuple(memoryview(self.words).cast("Q"))


class Moment(NamedTuple):
    """One sample: when, on which CPU, and its stack. Kept only for formats that show time; the others need counts only."""

    nanoseconds: int  # CLOCK_MONOTONIC
    cpu: int
    stack: Stack


@dataclass
class Collected:
    """`event`: as the user named it. `backend`: what sampled, for the report. `lost`: samples without a stack, by reason."""

    event: str
    backend: str
    frequency: int
    started: float = 0.0  # seconds since 1970
    seconds: float = 0.0  # how long it sampled
    counts: Counter[Stack] = field(default_factory=Counter)
    moments: list[Moment] | None = None
    lost: Counter[str] = field(default_factory=Counter)
    files: dict[int, TracedFile] = field(default_factory=dict)  # by the number in packed frames
    commands: dict[int, str] = field(default_factory=dict)  # names of processes, by pid
    threads: dict[int, str] = field(default_factory=dict)  # names of threads, by tid
    # By pid, of processes with code in no file: made while the process runs, for its names to be read after its end.
    perf_maps: dict[int, PerfMap] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # of files that are damaged, of limits that were reached

    @property
    def samples(self) -> int:
        return self.counts.total()

    def keep_threads(self, tids: frozenset[int]) -> None:
        """Drop the stacks of all other threads; of none if there are no `tids`. A note names those without samples."""
        if not tids:
            return
        seen = {stack.tid for stack in self.counts}
        self.notes += [f"thread {tid}: no samples" for tid in sorted(tids - seen)]
        for stack in [stack for stack in self.counts if stack.tid not in tids]:
            del self.counts[stack]
        if self.moments is not None:
            self.moments = [moment for moment in self.moments if moment.stack.tid in tids]


MAX_NAMED = 3  # files in one note


def notes_on_files(collected: Collected) -> list[str]:
    """Return a line for each reason why the tables of files in the stacks are missing or were made otherwise."""
    numbers = files_in_frames(packed for stack in collected.counts for packed in stack.frames)
    paths: dict[str, list[str]] = {}
    for number in sorted(numbers & collected.files.keys()):
        if why := collected.files[number].why:
            paths.setdefault(why, []).append(collected.files[number].path)
    return [
        f"{', '.join(found[:MAX_NAMED])}{f' and {len(found) - MAX_NAMED} more' if found[MAX_NAMED:] else ''}: {why}"
        for why, found in paths.items()
    ]
