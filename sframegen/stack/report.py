"""Stacks as text, as JSON, folded for flame graphs, or as bare addresses."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from sframegen.names import printable
from sframegen.stack.walk import End

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sframegen.stack.symbols import Symbols
    from sframegen.stack.tracer import Thread
    from sframegen.stack.walk import Frame

UNKNOWN = "??"
SIGNAL = "<signal handler called>"
BOTTOM = {End.OUTERMOST, End.NO_RETURN}  # the whole stack was walked


class Sample(NamedTuple):
    """All stacks of a process at one moment."""

    pid: int
    executable: str
    threads: list[Thread]
    stopped_ms: float | None  # how long the process could not run; None for a core file


def text(sample: Sample, symbols: Symbols, *, raw: bool) -> Iterator[str]:
    """Lines, as eu-stack prints them; `raw`: addresses without names."""
    yield f"PID {sample.pid} - {printable(sample.executable) or UNKNOWN}"
    for thread in sample.threads:
        yield f"TID {thread.tid}:"
        for number, frame in enumerate(thread.frames):
            yield f"#{number:<2} {frame.pc:#018x}" + ("" if raw else _named(frame, symbols))
        if thread.end not in BOTTOM:
            yield f"    {thread.end.value}" + (f": {thread.detail}" if thread.detail else "")


def _named(frame: Frame, symbols: Symbols) -> str:
    place = symbols.place(frame)
    function = f" {place.function} + {place.offset:#x}" if place.function else f" {SIGNAL if frame.signal else UNKNOWN}"
    return function + (f" - {printable(place.object)}" if place.object else "")


def as_json(sample: Sample, symbols: Symbols, problems: Iterable[str]) -> str:
    """One object. Addresses are numbers; `how` says by what a frame's caller is known."""
    threads = [
        {
            "tid": thread.tid,
            "name": thread.name,
            "frames": [_frame(frame, symbols) for frame in thread.frames],
            "end": thread.end.value,
            "complete": thread.end in BOTTOM,
            "detail": thread.detail,
        }
        for thread in sample.threads
    ]
    return json.dumps(
        {
            "pid": sample.pid,
            "executable": sample.executable,
            "stopped_ms": sample.stopped_ms,
            "threads": threads,
            "problems": list(problems),
        }
    )


def _frame(frame: Frame, symbols: Symbols) -> dict[str, Any]:
    place = symbols.place(frame)
    return {
        "pc": frame.pc,
        "sp": frame.sp,
        "cfa": frame.cfa,
        "how": frame.how.value if frame.how else None,
        "signal": frame.signal,
        "function": place.function,
        "offset": place.offset,
        "object": place.object,
        "address": place.address,
    }


class Folded:
    """Counts equal stacks: `thread;outermost;...;innermost 12`."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, threads: Iterable[Thread], symbols: Symbols) -> None:
        for thread in threads:
            names = [thread.name or str(thread.tid)]
            for frame in reversed(thread.frames):
                place = symbols.place(frame)
                names.append(place.function or (SIGNAL if frame.signal else f"[{place.object or UNKNOWN}]"))
            self.counts[";".join(printable(name).replace(";", ":") for name in names)] += 1

    def lines(self) -> Iterator[str]:
        for stack, count in self.counts.items():
            yield f"{stack} {count}"
