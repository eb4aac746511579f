"""Encodes a profile as JSON (docs/json-schema.json), or as folded stacks.

Folded stacks are the lines that flamegraph.pl and many other tools read: `group;outermost;...;innermost 12`.
"""

from __future__ import annotations

import json
from array import array
from typing import TYPE_CHECKING

from sframegen.profile.report.formats.path_bytes import NumberedBytes, StackTextWriter
from sframegen.profile.report.formats.row_kinds import RowKind, split_rows_by_kind
from sframegen.profile.report.label_trees import LabelTrees, count_samples_by_group, order_rows_by_group
from sframegen.profile.report.named import NO_ADDRESS, NamedProfile
from sframegen.profile.report.table import count_complete, count_incomplete, function_costs
from sframegen.stack.walking.frames import COMPLETE, End

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDED_SEPARATOR = b";"


def encode_folded(named: NamedProfile) -> Iterator[bytes]:
    """Yield the folded stacks in parts of many lines. Equal stacks of a group are one line."""
    trees = LabelTrees(named, lambda site: _encode_label(named.label(site)))
    texts = NumberedBytes(trees.labels, FOLDED_SEPARATOR)
    text_of = array("I", range(len(trees.labels)))  # a node has the number of its label, which is also that of its text
    writer = StackTextWriter(trees.tree, text_of, texts, named.max_depth)
    with order_rows_by_group(named) as grouped:
        for group, rows in zip(named.groups, grouped.by_group(), strict=True):
            tree, prefix = trees.merge_rows(rows), _encode_label(group)
            delimiters, row = NumberedBytes((prefix, prefix + FOLDED_SEPARATOR, b" ", b"\n")), 0
            while row < tree.rows.count:
                row = writer.put_folded_lines(row, delimiters)
                if writer.block.is_full():
                    yield writer.block.take()
    yield writer.block.take()


def _encode_label(label: str) -> bytes:
    return label.encode(errors="replace").replace(FOLDED_SEPARATOR, b":")


# A stack: {"group": "a", "pid": 7, ..., "thread": "main", "samples": 3, "complete": true, "end": "...", "frames": [0,4]}
# Its head goes up to the number of samples; its middle from there up to the numbers of the frames. Rows of a kind have the same.
JSON_SEPARATOR = b"]}, "  # between two stacks: the bracket closes the frames of the first stack
STACK_MIDDLES: dict[int, bytes] = {
    end: f', "complete": {json.dumps(end in COMPLETE)}, "end": {json.dumps(end.words)}, "frames": ['.encode() for end in End
}


def encode_json(named: NamedProfile) -> Iterator[bytes | str]:
    """Yield the profile as one JSON object, in parts."""
    document = {
        "event": named.event,
        "backend": named.backend,
        "frequency": named.frequency,
        "started": named.started,
        "seconds": named.seconds,
        "unit": named.unit.value,
        "samples": named.samples,
        "complete": count_complete(named),
        "guessed": named.guessed,
        "incomplete": count_incomplete(named),
        "lost": named.lost,
        "notes": named.notes,
        "by": named.by,
        "groups": count_samples_by_group(named),
        "functions": [cost._asdict() for cost in function_costs(named)],
    }
    yield json.dumps(document)[:-1]
    yield ', "frames": ['
    yield from _encode_frames(named)
    yield '], "stacks": ['
    yield from _encode_stacks(named)
    yield "]}\n"


def _encode_frames(named: NamedProfile) -> Iterator[str]:
    # Sites have no address, so that a frame is the text of its site with its address put in. No name can contain the text at which
    # the site is split, because JSON escapes quotes in names.
    sites = [json.dumps(site._asdict() | {"kind": site.kind.value}).split('"address": null') for site in named.locations.sites]
    numbered, separator = named.locations.numbered, ""
    for address, site in zip(numbered.first[: numbered.count], numbered.second, strict=False):
        before, after = sites[site]
        yield f'{separator}{before}"address": {"null" if address == NO_ADDRESS else address}{after}'
        separator = ", "


def _encode_stacks(named: NamedProfile) -> Iterator[bytes]:
    tree = named.tree
    numbers = NumberedBytes((b"%d" % number for number in range(len(named.locations))), b",")
    text_of = array("I", range(len(named.locations)))  # the text of a frame is its own number
    writer = StackTextWriter(tree, text_of, numbers, named.max_depth)
    is_first = True
    for first, kind_of, kinds in split_rows_by_kind(named):
        heads = NumberedBytes(JSON_SEPARATOR + _encode_stack_head(named, kind) for kind in kinds)
        middles = NumberedBytes(STACK_MIDDLES[kind.end] for kind in kinds)
        done = 0
        while done < len(kind_of):
            done = writer.put_json_stacks(first, done, kind_of, heads, middles)
            if block := writer.block.take():
                yield block[len(JSON_SEPARATOR) :] if is_first else block
                is_first = False
    if not is_first:
        yield b"]}"  # the end of the last stack


def _encode_stack_head(named: NamedProfile, kind: RowKind) -> bytes:
    pid, tid, process, thread = named.tasks[kind.task]
    fields = {"group": named.groups[kind.group], "pid": pid, "tid": tid, "process": process, "thread": thread or process}
    return json.dumps(fields)[:-1].encode() + b', "samples": '
