"""Writes an interactive flame graph: one HTML file that needs no network, and in which names cannot become markup or code."""

from __future__ import annotations

import base64
import hashlib
import json
from array import array
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sframegen.base.columns import zeros
from sframegen.base.text import cut_middle, printable
from sframegen.profile.report.formats.row_kinds import TableNumbers
from sframegen.profile.report.label_trees import LabelTrees, rows_by_group
from sframegen.profile.report.table import totals
from sframegen.profile.report.tree_passes import add_up, at_least
from sframegen.profile.stacks.call_tree import ROOT, CallTree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.base.columns import Column
    from sframegen.profile.report.named import Named

TEMPLATE = Path(__file__).with_suffix(".html")  # with @NAME@ for each part
ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&"}  # characters that could end the element of the data


class DrawnFrame(NamedTuple):
    label: str
    object: str
    path: str
    guessed: bool


SMALLEST = 20_000  # the least share that is drawn is one in this number


def flamegraph(named: Named) -> Iterator[str]:
    """Yield the page in parts. Its data are columns of nodes in preorder; its script computes their places."""
    style, script = (TEMPLATE.with_suffix(ending).read_text() for ending in (".css", ".js"))
    data = json.dumps(_data(named)).translate(ESCAPES)
    parts = {
        "DATA": data,
        "STYLE": style,
        "SCRIPT": script,
        "STYLE_HASH": _allowing_hash(style),
        "SCRIPT_HASH": _allowing_hash(script),
    }
    for number, part in enumerate(TEMPLATE.read_text().split("@")):
        yield parts[part] if number % 2 else part


def _allowing_hash(text: str) -> str:
    """Return the hash with which a content security policy allows an element."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _data(named: Named) -> dict[str, Any]:
    frames: TableNumbers[DrawnFrame] = TableNumbers()
    depths, numbers, samples = array("I"), array("I"), array("Q")
    least = max(1, named.samples // SMALLEST)
    for depth, frame, count in preorder(named, least):
        depths.append(depth)
        numbers.append(frames.of(frame))
        samples.append(count)
    notes = [*totals(named), *named.notes, *([f"not drawn: less than {named.unit.describe(least)}"] if least > 1 else [])]
    objects: TableNumbers[str] = TableNumbers()
    paths: TableNumbers[str] = TableNumbers()
    return {
        "title": cut_middle(printable(named.title or f"{named.event}: {named.unit.describe(named.samples)}")),
        "notes": [cut_middle(printable(line)) for line in notes if line],
        "depths": list(depths),
        "frames": list(numbers),
        "samples": list(samples),
        "unit": named.unit.value,
        "labels": [cut_middle(printable(frame.label)) for frame in frames.items],
        "frameObjects": [objects.of(cut_middle(printable(frame.object))) for frame in frames.items],
        "framePaths": [paths.of(cut_middle(printable(frame.path))) for frame in frames.items],
        "guessed": [int(frame.guessed) for frame in frames.items],
        "objects": objects.items,
        "paths": paths.items,
    }


def preorder(named: Named, least: int) -> Iterator[tuple[int, DrawnFrame, int]]:
    """Yield (depth, frame, samples) of all nodes with at least `least` samples, groups first.

    Children are in alphabetical order: equal functions are neighbours.
    """
    if not named.samples:
        return
    yield 0, DrawnFrame("all", "", "", guessed=False), named.samples
    trees = LabelTrees(named, lambda site: DrawnFrame(named.label(site), site.object, site.path, site.guessed))
    with rows_by_group(named) as grouped:
        for number in sorted(range(len(named.groups)), key=named.groups.__getitem__):
            tree, group = trees.merge(grouped.of(number)), named.groups[number]
            below = zeros("Q", tree.nodes.count)
            add_up(tree, below)
            if below[ROOT] >= least:
                yield 1, DrawnFrame(group, "", "", guessed=False), below[ROOT]
                yield from _children(tree, trees.labels, below, least)


def _children(tree: CallTree, labels: list[DrawnFrame], below: Column, least: int) -> Iterator[tuple[int, DrawnFrame, int]]:
    large = zeros("I", len(below))
    children: dict[int, list[tuple[DrawnFrame, int]]] = {}
    for node in large[1 : at_least(below, least, large)]:
        children.setdefault(tree.nodes.second[node], []).append((labels[tree.nodes.first[node]], node))
    waiting = [(2, *item) for item in sorted(children.get(ROOT, ()), reverse=True)]
    while waiting:
        depth, frame, node = waiting.pop()
        yield depth, frame, below[node]
        waiting.extend((depth + 1, *item) for item in sorted(children.get(node, ()), reverse=True))
