"""Samples of `sframegen stack` -> named stacks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sframegen.base.text import printable
from sframegen.profile.report.label_trees import group_stacks
from sframegen.profile.report.named import MISSING, FrameKind, Named, NamedFrame, NamedStack
from sframegen.profile.report.runtime_frames import read_name
from sframegen.profile.sampling_plan import Grouping
from sframegen.stack.report import UNKNOWN, function_of
from sframegen.stack.walking.frames import COMPLETE

if TYPE_CHECKING:
    from sframegen.stack.names.frame_names import Symbols
    from sframegen.stack.report import Sample
    from sframegen.stack.walking.frames import Frame


class TracedStacks:
    """Counts equal stacks of all samples."""

    def __init__(self, symbols: Symbols, interval: float) -> None:
        """`interval`: seconds between samples."""
        self._symbols = symbols
        self._begin = time.monotonic()
        self._named = Named("stacks of threads", "ptrace", round(1 / interval) if interval else 0, time.time(), 0.0)

    def add(self, sample: Sample) -> None:
        """Add a sample: names are those of this moment."""
        process = printable(sample.executable.rpartition("/")[2])
        for thread in sample.threads:
            frames = tuple([self._frame(frame) for frame in reversed(thread.frames)])
            frames = frames if thread.end in COMPLETE else (MISSING, *frames)
            stack = NamedStack(sample.pid, thread.tid, process, printable(thread.name or str(thread.tid)), frames, thread.end, 1)
            self._named.add(stack)

    def named(self) -> Named:
        """Return all stacks so far, grouped by the names of their threads."""
        self._named.seconds = time.monotonic() - self._begin
        return group_stacks(self._named, Grouping.COMM)

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
