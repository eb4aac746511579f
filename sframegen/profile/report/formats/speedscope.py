"""speedscope's own JSON: one profile for each group, in the order of time if moments are known."""

from __future__ import annotations

import json
from array import array
from typing import TYPE_CHECKING

from sframegen.profile.report.formats.path_bytes import NumberedBytes, PathTexts
from sframegen.profile.report.label_trees import LabelTrees, rows_by_group
from sframegen.profile.units import Unit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.profile.report.named import Named

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
EXPORTER = "sframegen"


def speedscope(named: Named) -> Iterator[bytes | str]:
    """Return the parts of the file. Weights are numbers of samples."""
    trees = LabelTrees(named, lambda site: (site.label, site.source or site.path, site.line if named.by_line else 0))
    sites = named.places.numbered.second[: len(named.places)]
    numbers = NumberedBytes((b"%d" % number for number in range(len(trees.labels))), b",")
    paths = PathTexts(named.tree, array("I", [trees.label_of[site] for site in sites]), numbers, named.max_depth)
    name = f"{named.event}: {named.unit.shown(named.samples)}"
    unit = "none" if named.unit is Unit.SAMPLES else named.unit.value
    start = {"$schema": SCHEMA, "exporter": EXPORTER, "name": name, "activeProfileIndex": 0}
    yield json.dumps(start)[:-1] + ', "profiles": ['
    separator = ""
    with rows_by_group(named) as grouped:
        samples = named.tree.samples
        in_time = named.moments is not None
        found = _in_time(named) if in_time else [(rows, [samples[row] for row in rows]) for rows in grouped.of_each()]
        for group, (rows, weights) in sorted(zip(named.groups, found, strict=True), key=lambda one: -sum(one[1][1])):
            new = {"type": "sampled", "name": group, "unit": unit, "startValue": 0, "endValue": sum(weights)}
            yield f'{separator}{json.dumps(new)[:-1]}, "weights": {json.dumps(list(weights))}, "samples": ['
            separator = ", "
            for number, row in enumerate(rows):
                yield (b", [%b]" if number else b"[%b]") % paths.text(named.tree.node_of(row))
            yield "]}"
    frames = [
        {"name": label} | ({"file": path} if path else {}) | ({"line": line} if line else {}) for label, path, line in trees.labels
    ]
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
