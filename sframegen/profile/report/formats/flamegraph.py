"""An interactive flame graph: one HTML file that opens without a network, and whose names cannot become markup or code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sframegen.elf.text import printable, shortened
from sframegen.profile.report.formats.frame_numbers import TableNumbers
from sframegen.profile.report.table import totals
from sframegen.program.html_page import html_page, json_element

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.profile.report.named import Named

TEMPLATE = Path(__file__).with_suffix(".html")


class _Frame(NamedTuple):
    label: str
    object: str
    path: str
    guessed: bool


class _Node:
    """`children`: by frame."""

    __slots__ = ("children", "samples")

    def __init__(self) -> None:
        self.children: dict[_Frame, _Node] = {}
        self.samples = 0


def flamegraph(named: Named) -> Iterator[str]:
    """Return the parts of the page. The data are columns of nodes in preorder; the script computes their places."""
    return html_page(TEMPLATE, {"DATA": json_element(_data(named))})


def _data(named: Named) -> dict[str, Any]:
    frames: TableNumbers[_Frame] = TableNumbers()
    objects: TableNumbers[str] = TableNumbers()
    paths: TableNumbers[str] = TableNumbers()
    depths, numbers, samples = [], [], []
    for depth, frame, node in _preorder(_tree(named)):
        depths.append(depth)
        numbers.append(frames.of(frame))
        samples.append(node.samples)
    return {
        "title": shortened(printable(f"{named.event}: {named.samples:,} samples")),
        "notes": [shortened(printable(line)) for line in totals(named) if line],
        "depths": depths,
        "frames": numbers,
        "samples": samples,
        "labels": [shortened(printable(frame.label)) for frame in frames.items],
        "frameObjects": [objects.of(shortened(printable(frame.object))) for frame in frames.items],
        "framePaths": [paths.of(shortened(printable(frame.path))) for frame in frames.items],
        "guessed": [int(frame.guessed) for frame in frames.items],
        "objects": objects.items,
        "paths": paths.items,
    }


def _tree(named: Named) -> _Node:
    root = _Node()
    for stack in named.stacks:
        root.samples += stack.count
        node = root
        group = _Frame(stack.group, "", "", guessed=False)
        for frame in (group, *(_Frame(one.label, one.object, one.path, one.guessed) for one in stack.frames)):
            node = node.children.setdefault(frame, _Node())
            node.samples += stack.count
    return root


def _preorder(root: _Node) -> Iterator[tuple[int, _Frame, _Node]]:
    """Return (depth, frame, node) of each node; children in alphabetical order: equal functions are neighbours."""
    if not root.samples:
        return
    waiting = [(0, _Frame("all", "", "", guessed=False), root)]
    while waiting:
        depth, frame, node = waiting.pop()
        yield depth, frame, node
        waiting.extend((depth + 1, *item) for item in sorted(node.children.items(), key=lambda item: item[0], reverse=True))
