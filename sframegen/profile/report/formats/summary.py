"""Our own JSON, which docs/json.md describes."""

from __future__ import annotations

import json
from array import array
from functools import lru_cache
from typing import TYPE_CHECKING

from sframegen.profile.report.formats.path_bytes import PathBytes
from sframegen.profile.report.grouping import counts_of_groups
from sframegen.profile.report.named import MAX_DEPTH
from sframegen.profile.report.table import costs, incomplete, whole_stacks
from sframegen.stack.walking.ends import COMPLETE, End

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.profile.report.named import Named


def summary(named: Named) -> Iterator[str]:
    """Return the parts of one JSON object."""
    document = {
        "event": named.event,
        "backend": named.backend,
        "frequency": named.frequency,
        "started": named.started,
        "seconds": named.seconds,
        "samples": named.samples,
        "complete": whole_stacks(named),
        "guessed": named.guessed,
        "incomplete": incomplete(named),
        "lost": named.lost,
        "notes": named.notes,
        "by": named.by,
        "groups": counts_of_groups(named),
        "functions": [cost._asdict() for cost in costs(named)],
    }
    yield json.dumps(document)[:-1]
    yield from _list("frames", (json.dumps(frame._asdict() | {"kind": frame.kind.value}) for frame in named.places))
    yield from _list("stacks", _stacks(named))
    yield "}\n"


def _list(name: str, items: Iterator[str]) -> Iterator[str]:
    yield f', "{name}": ['
    for number, item in enumerate(items):
        yield f", {item}" if number else item
    yield "]"


def _stacks(named: Named) -> Iterator[str]:
    tree = named.tree
    paths = PathBytes(tree, array("I", range(len(named.places))), MAX_DEPTH)
    ends = {end: f'"complete": {json.dumps(end in COMPLETE)}, "end": {json.dumps(end.words)}' for end in End}

    @lru_cache(maxsize=1 << 12)
    def begin(task: int, group: int) -> str:
        pid, tid, process, thread = named.tasks[task]
        known = {"group": named.groups[group], "pid": pid, "tid": tid, "process": process, "thread": thread or process}
        return json.dumps(known)[:-1]

    for row in named.rows():
        first = begin(tree.rows.second[row], named.group_of[row])
        frames = paths.json(tree.node_of(row)).decode()
        yield f'{first}, "samples": {tree.samples[row]}, {ends[End(tree.end_of(row))]}, "frames": {frames}}}'
