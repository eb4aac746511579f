"""Our own JSON, which docs/json.md describes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from sframegen.profile.report.formats.frame_numbers import TableNumbers
from sframegen.profile.report.grouping import counts_of_groups
from sframegen.profile.report.table import costs, incomplete, is_guessed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.profile.report.named import Named, NamedFrame


def summary(named: Named) -> Iterator[str]:
    """Return the parts of one JSON object."""
    frames: TableNumbers[NamedFrame] = TableNumbers()
    stacks = [
        {
            "group": stack.group,
            "pid": stack.pid,
            "tid": stack.tid,
            "process": stack.process,
            "thread": stack.thread,
            "samples": stack.count,
            "complete": stack.complete,
            "end": stack.end,
            "frames": [frames.of(frame) for frame in stack.frames],
        }
        for stack in named.stacks
    ]
    document = {
        "event": named.event,
        "backend": named.backend,
        "frequency": named.frequency,
        "started": named.started,
        "seconds": named.seconds,
        "samples": named.samples,
        "complete": sum(stack.count for stack in named.stacks if stack.complete),
        "guessed": sum(stack.count for stack in named.stacks if is_guessed(stack)),
        "incomplete": incomplete(named),
        "lost": named.lost,
        "notes": named.notes,
        "by": named.by,
        "groups": counts_of_groups(named),
        "functions": [cost._asdict() for cost in costs(named)],
        "frames": [frame._asdict() | {"kind": frame.kind.value} for frame in frames.items],
        "stacks": stacks,
    }
    yield from json.JSONEncoder().iterencode(document)
    yield "\n"
