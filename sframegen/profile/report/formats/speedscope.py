"""speedscope's own JSON: one profile for each group, in the order of time if moments are known."""

from __future__ import annotations

import json
from array import array
from typing import TYPE_CHECKING

from sframegen.profile.report.formats.path_bytes import PathBytes
from sframegen.profile.report.label_trees import LabelTrees, rows_by_group
from sframegen.profile.report.named import MAX_DEPTH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.profile.report.named import Named

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
EXPORTER = "sframegen"


def speedscope(named: Named) -> Iterator[str]:
    """Return the parts of the file. Weights are numbers of samples."""
    trees = LabelTrees(named, lambda site: (site.label, site.path))
    sites = named.places.numbered.second[: len(named.places)]
    paths = PathBytes(named.tree, array("I", [trees.label_of[site] for site in sites]), MAX_DEPTH)
    name = f"{named.event}: {named.samples:,} samples"
    start = {"$schema": SCHEMA, "exporter": EXPORTER, "name": name, "activeProfileIndex": 0}
    yield json.dumps(start)[:-1] + ', "profiles": ['
    separator = ""
    with rows_by_group(named) as groups:
        samples = named.tree.samples
        found = _in_time(named) if named.moments is not None else [(rows, [samples[row] for row in rows]) for rows in groups]
        for group, (rows, weights) in sorted(zip(named.groups, found, strict=True), key=lambda one: -sum(one[1][1])):
            new = {"type": "sampled", "name": group, "unit": "none", "startValue": 0, "endValue": sum(weights)}
            yield f'{separator}{json.dumps(new)[:-1]}, "weights": {json.dumps(list(weights))}, "samples": ['
            separator = ", "
            for number, row in enumerate(rows):
                yield (", " if number else "") + paths.json(named.tree.node_of(row)).decode()
            yield "]}"
    frames = [{"name": label} | ({"file": path} if path else {}) for label, path in trees.labels]
    yield f'], "shared": {json.dumps({"frames": frames})}}}'


def _in_time(named: Named) -> list[tuple[array[int], array[int]]]:
    """Return for each group rows, in the order of time, with their samples: equal neighbours together."""
    found = [(array("I"), array("I")) for _ in named.groups]
    for _, _, row in named.moments.in_order() if named.moments else ():
        rows, counts = found[named.group_of[row]]
        if rows and rows[-1] == row:
            counts[-1] += 1
        else:
            rows.append(row)
            counts.append(1)
    return found
