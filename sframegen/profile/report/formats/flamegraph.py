"""Encodes a profile as an interactive flame graph: one HTML file without network access, where names cannot become markup."""

from __future__ import annotations

import base64
import hashlib
import json
from array import array
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sframegen.base.columns import zeros
from sframegen.base.text import cut_middle, printable
from sframegen.profile.report.formats.row_kinds import NumberedItems
from sframegen.profile.report.label_trees import LabelTrees, order_rows_by_group
from sframegen.profile.report.table import format_totals
from sframegen.profile.report.tree_passes import select_large_nodes, sum_subtrees
from sframegen.profile.stacks.call_tree import ROOT, CallTree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.base.columns import Column
    from sframegen.profile.report.named import NamedProfile

TEMPLATE = Path(__file__).with_suffix(".html")  # has @NAME@ in the place of each part
ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&"}  # characters that could end the data's HTML element


class DrawnFrame(NamedTuple):
    label: str
    object: str
    path: str
    guessed: bool


MIN_SHARE_INVERSE = 20_000  # nodes with less than one in 20,000 of the samples are not drawn


def encode_flamegraph(named: NamedProfile) -> Iterator[str]:
    """Yield the page in parts. Its data are columns of nodes in preorder; its script computes their positions."""
    style, script = (TEMPLATE.with_suffix(ending).read_text() for ending in (".css", ".js"))
    data = json.dumps(_collect_data(named)).translate(ESCAPES)
    contents = {"DATA": data, "STYLE": style, "SCRIPT": script}
    contents |= {"STYLE_HASH": _content_hash(style), "SCRIPT_HASH": _content_hash(script)}
    for number, part in enumerate(TEMPLATE.read_text().split("@")):
        yield contents[part] if number % 2 else part  # every second part is a name


def _content_hash(text: str) -> str:
    """Return the hash by which the page's content security policy allows a style or script element."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _collect_data(named: NamedProfile) -> dict[str, Any]:
    frames: NumberedItems[DrawnFrame] = NumberedItems()
    depths, numbers, samples = array("I"), array("I"), array("Q")
    minimum = max(1, named.samples // MIN_SHARE_INVERSE)
    for depth, frame, count in walk_preorder(named, minimum):
        depths.append(depth)
        numbers.append(frames.number_of(frame))
        samples.append(count)
    left_out = [f"not drawn: less than {named.unit.describe(minimum)}"] if minimum > 1 else []
    objects: NumberedItems[str] = NumberedItems()
    paths: NumberedItems[str] = NumberedItems()
    return {
        "title": cut_middle(printable(named.title or f"{named.event}: {named.unit.describe(named.samples)}")),
        "notes": [cut_middle(printable(line)) for line in (*format_totals(named), *named.notes, *left_out) if line],
        "depths": list(depths),
        "frames": list(numbers),
        "samples": list(samples),
        "unit": named.unit.value,
        "labels": [cut_middle(printable(frame.label)) for frame in frames.items],
        "frameObjects": [objects.number_of(cut_middle(printable(frame.object))) for frame in frames.items],
        "framePaths": [paths.number_of(cut_middle(printable(frame.path))) for frame in frames.items],
        "guessed": [int(frame.guessed) for frame in frames.items],
        "objects": objects.items,
        "paths": paths.items,
    }


def walk_preorder(named: NamedProfile, minimum: int) -> Iterator[tuple[int, DrawnFrame, int]]:
    """Yield (depth, frame, samples) of all nodes with at least the minimum of samples, below a root and a node for each group.

    Children are in alphabetical order, so that equal functions are neighbours.
    """
    if not named.samples:
        return
    yield 0, DrawnFrame("all", "", "", guessed=False), named.samples
    trees = LabelTrees(named, lambda site: DrawnFrame(named.label(site), site.object, site.path, site.guessed))
    with order_rows_by_group(named) as grouped:
        for number in sorted(range(len(named.groups)), key=named.groups.__getitem__):
            tree, group = trees.merge_rows(grouped.rows_of(number)), named.groups[number]
            totals = zeros("Q", tree.nodes.count)
            sum_subtrees(tree, totals)
            if totals[ROOT] >= minimum:
                yield 1, DrawnFrame(group, "", "", guessed=False), totals[ROOT]
                yield from _walk_tree(tree, trees.labels, totals, minimum)


def _walk_tree(tree: CallTree, labels: list[DrawnFrame], totals: Column, minimum: int) -> Iterator[tuple[int, DrawnFrame, int]]:
    """Yield the nodes of one group's tree, as walk_preorder does. `totals`: the samples of each node and those below it."""
    large = zeros("I", len(totals))
    children: dict[int, list[tuple[DrawnFrame, int]]] = {}
    for node in large[1 : select_large_nodes(totals, minimum, large)]:
        children.setdefault(tree.nodes.second[node], []).append((labels[tree.nodes.first[node]], node))
    waiting = [(2, *item) for item in sorted(children.get(ROOT, ()), reverse=True)]
    while waiting:
        depth, frame, node = waiting.pop()
        yield depth, frame, totals[node]
        waiting.extend((depth + 1, *item) for item in sorted(children.get(node, ()), reverse=True))
