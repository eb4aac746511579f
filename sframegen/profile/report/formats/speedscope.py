"""speedscope's own JSON: one profile for each group, in the order of time if moments are known."""

from __future__ import annotations

import json
from itertools import groupby
from typing import TYPE_CHECKING, Any

from sframegen.profile.report.formats.frame_numbers import TableNumbers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.profile.report.named import Named, NamedStack

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
EXPORTER = "sframegen"


def speedscope(named: Named) -> Iterator[str]:
    """Return the parts of the file. Weights are numbers of samples."""
    frames: TableNumbers[tuple[str, str]] = TableNumbers()
    profiles: dict[str, dict[str, Any]] = {}
    for stack, count in _runs(named):
        new = {"type": "sampled", "name": stack.group, "unit": "none", "startValue": 0, "endValue": 0, "samples": [], "weights": []}
        profile = profiles.setdefault(stack.group, new)
        profile["samples"].append([frames.of((frame.label, frame.path)) for frame in stack.frames])
        profile["weights"].append(count)
        profile["endValue"] += count
    largest_first = sorted(profiles.values(), key=lambda profile: -profile["endValue"])
    shared = {"frames": [{"name": label} | ({"file": path} if path else {}) for label, path in frames.items]}
    name = f"{named.event}: {named.samples:,} samples"
    document = {"$schema": SCHEMA, "exporter": EXPORTER, "name": name, "activeProfileIndex": 0}
    yield json.dumps(document | {"profiles": largest_first, "shared": shared})


def _runs(named: Named) -> Iterator[tuple[NamedStack, int]]:
    """Return stacks with their counts; in the order of time, equal neighbours together."""
    if named.moments is None:
        yield from ((stack, stack.count) for stack in named.stacks)
        return
    stacks = (moment.stack for moment in sorted(named.moments, key=lambda moment: moment.nanoseconds))
    for _, equal in groupby(stacks, key=id):
        first, *rest = equal
        yield first, 1 + len(rest)
