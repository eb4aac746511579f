"""Samples of `sframegen stack` -> named stacks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sframegen.elf.text import printable
from sframegen.profile.report.grouping import group_stacks
from sframegen.profile.report.named import MISSING, FrameKind, Named, NamedFrame, NamedMoment, NamedStack
from sframegen.profile.report.runtime_frames import read_name
from sframegen.stack.report import UNKNOWN, function_of
from sframegen.stack.walking.ends import COMPLETE

if TYPE_CHECKING:
    from sframegen.stack.names.frame_names import Symbols
    from sframegen.stack.report import Sample
    from sframegen.stack.walking.frames import Frame, Thread


class TracedStacks:
    """Counts equal stacks of all samples."""

    def __init__(self, symbols: Symbols, interval: float, *, moments: bool = False) -> None:
        """`interval`: seconds between samples. `moments`: keep the time of each."""
        self._symbols = symbols
        self._frequency = round(1 / interval) if interval else 0
        self._started, self._begin = time.time(), time.monotonic()
        self._stacks: dict[tuple[object, ...], NamedStack] = {}
        self._moments: list[NamedMoment] | None = [] if moments else None

    def add(self, sample: Sample) -> None:
        """Add a sample: names are those of this moment."""
        now = time.monotonic_ns()
        process = printable(sample.executable.rpartition("/")[2])
        for thread in sample.threads:
            stack = self._stack(sample.pid, process, thread)
            stack.count += 1
            if self._moments is not None:
                self._moments.append(NamedMoment(now, 0, stack))

    def named(self) -> Named:
        """Return all stacks so far, grouped by the names of their threads."""
        seconds = time.monotonic() - self._begin
        stacks = [*self._stacks.values()]
        named = Named("stacks of threads", "ptrace", self._frequency, self._started, seconds, stacks, self._moments)
        return group_stacks(named, "comm")

    def _stack(self, pid: int, process: str, thread: Thread) -> NamedStack:
        frames = tuple([self._frame(frame) for frame in reversed(thread.frames)])
        complete = thread.end in COMPLETE
        name = printable(thread.name or str(thread.tid))
        key = (pid, thread.tid, name, frames, thread.end)
        if key not in self._stacks:
            frames = frames if complete else (MISSING, *frames)
            self._stacks[key] = NamedStack(pid, thread.tid, process, name, frames, thread.end.words, complete, 0)
        return self._stacks[key]

    def _frame(self, frame: Frame) -> NamedFrame:
        place = self._symbols.place(frame)
        path = printable(place.object or "")
        function = function_of(frame, place)
        if place.address is None and function and not path:  # from a perf map
            made = read_name(function)
            return NamedFrame(made.function, made.object, made.path, frame.code, FrameKind.RUNTIME, frame.guessed)
        name = place.object_name or UNKNOWN
        address = None if place.address is None else place.address - (frame.pc - frame.code)
        return NamedFrame(function or f"[{name}]", name, path, address, FrameKind.USER, frame.guessed)
