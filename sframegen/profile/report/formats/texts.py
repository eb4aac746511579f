"""Text formats: our own JSON (docs/json-schema.json), and folded stacks.

Folded stacks are lines that flamegraph.pl and many others read: `group;outermost;...;innermost 12`.
"""

from __future__ import annotations

import json
from array import array
from typing import TYPE_CHECKING

from sframegen.profile.report.formats.path_bytes import NumberedBytes, PathTexts
from sframegen.profile.report.formats.row_kinds import RowKind, rows_in_parts
from sframegen.profile.report.label_trees import LabelTrees, counts_of_groups, rows_by_group
from sframegen.profile.report.named import NO_ADDRESS, Named
from sframegen.profile.report.table import costs, incomplete, whole_stacks
from sframegen.stack.walking.frames import COMPLETE, End

if TYPE_CHECKING:
    from collections.abc import Iterator


FOLDED_SEPARATOR = b";"


def folded(named: Named) -> Iterator[bytes]:
    """Yield the folded stacks in parts; equal stacks are one line."""
    trees = LabelTrees(named, lambda site: _text(named.label(site)))
    texts = NumberedBytes(trees.labels, FOLDED_SEPARATOR)
    paths = PathTexts(trees.tree, array("I", range(len(trees.labels))), texts, named.max_depth)
    with rows_by_group(named) as grouped:
        for group, rows in zip(named.groups, grouped.of_each(), strict=True):
            tree, first = trees.merge(rows), _text(group)
            begin, row = NumberedBytes((first, first + FOLDED_SEPARATOR, b" ", b"\n")), 0
            while row < tree.rows.count:
                row = paths.put_lines(row, begin)
                if paths.block.is_full():
                    yield paths.block.taken()
    yield paths.block.taken()


def _text(label: str) -> bytes:
    return label.encode(errors="replace").replace(FOLDED_SEPARATOR, b":")


JSON_SEPARATOR = b"]}, "  # between two stacks: the second bracket closes the frames of the first one
MIDDLES: dict[int, bytes] = {
    end: f', "complete": {json.dumps(end in COMPLETE)}, "end": {json.dumps(end.words)}, "frames": ['.encode() for end in End
}


def summary(named: Named) -> Iterator[bytes | str]:
    """Yield the profile as one JSON object, in parts."""
    document = {
        "event": named.event,
        "backend": named.backend,
        "frequency": named.frequency,
        "started": named.started,
        "seconds": named.seconds,
        "unit": named.unit.value,
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
    yield ', "frames": ['
    yield from _frames(named)
    yield '], "stacks": ['
    yield from _stacks(named)
    yield "]}\n"


def _frames(named: Named) -> Iterator[str]:
    sites = [json.dumps(site._asdict() | {"kind": site.kind.value}).split('"address": null') for site in named.places.sites]
    numbered, separator = named.places.numbered, ""
    for address, site in zip(numbered.first[: numbered.count], numbered.second, strict=False):
        before, after = sites[site]
        yield f'{separator}{before}"address": {"null" if address == NO_ADDRESS else address}{after}'
        separator = ", "


def _stacks(named: Named) -> Iterator[bytes]:
    tree = named.tree
    numbers = NumberedBytes((b"%d" % number for number in range(len(named.places))), b",")
    paths = PathTexts(tree, array("I", range(len(named.places))), numbers, named.max_depth)
    skipped = len(JSON_SEPARATOR)  # before the first
    for first, kind_of, kinds in rows_in_parts(named):
        heads = NumberedBytes(JSON_SEPARATOR + _head(named, kind) for kind in kinds)
        middles = NumberedBytes(MIDDLES[kind.end] for kind in kinds)
        done = 0
        while done < len(kind_of):
            done = paths.put_rows(first, done, kind_of, heads, middles)
            if block := paths.block.taken():
                yield block[skipped:]
                skipped = 0
    if not skipped:
        yield b"]}"


def _head(named: Named, kind: RowKind) -> bytes:
    pid, tid, process, thread = named.tasks[kind.task]
    known = {"group": named.groups[kind.group], "pid": pid, "tid": tid, "process": process, "thread": thread or process}
    return json.dumps(known)[:-1].encode() + b', "samples": '
