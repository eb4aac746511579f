"""Prints stacks as text, as JSON, or as bare addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sframegen.base.text import printable
from sframegen.stack.walking.frames import COMPLETE, Frame, RuleSource, Thread

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sframegen.stack.names.frame_names import Symbols
    from sframegen.stack.objects.loaded_objects import LoadedObjects

UNKNOWN = "??"
GUESSED = " [guess]"  # frames reached through a frame pointer of code without a rule
SIGNAL = "<signal handler called>"


class Sample(NamedTuple):
    """All stacks of a process at one moment."""

    pid: int
    executable: str
    threads: list[Thread]
    stopped_ms: float  # how long the process was stopped


def stack_text(sample: Sample, symbols: Symbols, *, raw: bool) -> Iterator[str]:
    """Return the stacks as lines in the style of eu-stack; `raw`: addresses without names."""
    lines: dict[tuple[int, bool, bool, bool], str] = {}  # without the numbers of the frames
    yield f"PID {sample.pid} - {printable(sample.executable) or UNKNOWN}"
    for thread in sample.threads:
        yield f"TID {thread.tid}:"
        for number, frame in enumerate(thread.frames):
            pc, _, _, _, exact, signal, guessed = frame
            known = (pc, exact, signal, guessed)
            line = lines.get(known)
            if line is None:
                line = lines[known] = f"{pc:#018x}{'' if raw else _frame_name(frame, symbols)}{GUESSED * guessed}"
            yield f"#{number:<2} {line}"
        if thread.end not in COMPLETE:
            yield f"    {thread.end.words}" + (f": {thread.detail}" if thread.detail else "")


def _frame_name(frame: Frame, symbols: Symbols) -> str:
    place = symbols.place(frame)
    name = SIGNAL if frame.signal and not place.function else place.label
    function = f" {name} + {place.offset:#x}" if name and name != SIGNAL else f" {name or UNKNOWN}"
    return function + (f" - {printable(place.object)}" if place.object else "")


def as_json(sample: Sample, symbols: Symbols, problems: Iterable[str]) -> str:
    """Return all stacks as one JSON object. Addresses are numbers; `how` says how the caller of a frame was found."""
    import json  # noqa: PLC0415 - only needed here

    threads = [
        {
            "tid": thread.tid,
            "name": thread.name,
            "idle": thread.idle,
            "frames": [_frame_fields(frame, symbols) for frame in thread.frames],
            "end": thread.end.words,
            "complete": thread.end in COMPLETE,
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


def _frame_fields(frame: Frame, symbols: Symbols) -> dict[str, Any]:
    return {
        "pc": frame.pc,
        "sp": frame.sp,
        "cfa": frame.cfa,
        "how": frame.how.value if frame.how else None,
        "signal": frame.signal,
        "guessed": frame.guessed,
        **symbols.place(frame)._asdict(),
    }


def without_section(threads: Iterable[Thread], objects: LoadedObjects) -> list[str]:
    """Return the files whose code had no rule in these stacks, but whose call frame information may have one."""
    frames = (frame for thread in threads for frame in thread.frames if frame.how in (None, RuleSource.FRAME_POINTER))
    found = (objects.known_at(frame.code) for frame in frames)
    return sorted({loaded.name for loaded in found if loaded and loaded.file and not loaded.section})
