"""Two profiles -> what takes a larger or a smaller share of the second one: a table, and a flame graph in red and blue."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from sframegen.profile.report.formats.flamegraph import (
    SMALLEST,
    TEMPLATE,
    DrawnFrame,
    frame_columns,
    page_texts,
    preorder,
)
from sframegen.profile.report.formats.frame_numbers import TableNumbers
from sframegen.profile.report.table import costs, cut_to_width
from sframegen.program.html_page import html_page, json_element

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.profile.report.named import Named

ROWS = 20
SCALE = 1_000_000  # the width of the whole picture: half of it for the shares in each profile
NUMBERS = 33  # columns of the figures


class ShareChange(NamedTuple):
    """Samples of a function itself, in both profiles, and its shares (0 to 1)."""

    function: str
    object: str
    before: int
    after: int
    share_before: float
    share_after: float

    @property
    def points(self) -> float:
        return 100 * (self.share_after - self.share_before)


def share_changes(before: Named, after: Named) -> list[ShareChange]:
    """Return all functions with samples of their own, those whose share differs most first."""
    counts: dict[tuple[str, str], list[int]] = {}
    for at, named in enumerate((before, after)):
        for cost in costs(named):
            if cost.self:
                counts.setdefault((cost.function, cost.object), [0, 0])[at] += cost.self
    whole = [max(1, named.samples) for named in (before, after)]
    found = [ShareChange(*key, old, new, old / whole[0], new / whole[1]) for key, (old, new) in counts.items()]
    return sorted(found, key=lambda one: (-abs(one.points), one.function, one.object))


def difference_table(before: Named, after: Named, width: int) -> Iterator[str]:
    """Return the lines."""
    rows = share_changes(before, after)[:ROWS]
    objects = min(max([len("OBJECT"), *(len(row.object) for row in rows)]), width // 4)
    names = min(max([len("FUNCTION"), *(len(row.function) for row in rows)]), max(10, width - NUMBERS - objects - 4))
    yield f"{'BEFORE %':>9} {'AFTER %':>9} {'POINTS':>8}  {'FUNCTION':<{names}}  OBJECT"
    for row in rows:
        numbers = f"{100 * row.share_before:>9.2f} {100 * row.share_after:>9.2f} {row.points:>+8.2f}"
        yield f"{numbers}  {cut_to_width(row.function, names):<{names}}  {cut_to_width(row.object, objects)}".rstrip()
    yield ""
    yield f"before: {_of(before)}; after: {_of(after)}; shares are of samples in the function itself"


def _of(named: Named) -> str:
    return f"{named.unit.shown(named.samples)} of {named.event} in {named.seconds:.1f} s"


def _in_words(one: ShareChange) -> str:
    return f"{one.points:+.2f} points, {100 * one.share_before:.2f} % before, {100 * one.share_after:.2f} % after"


@dataclass
class _Node:
    """Samples in both profiles."""

    counts: list[int] = field(default_factory=lambda: [0, 0])
    children: dict[DrawnFrame, _Node] = field(default_factory=dict)


def difference_graph(before: Named, after: Named) -> Iterator[str]:
    """Return the parts of the page. A frame is as wide as its shares in both profiles together."""
    frames: TableNumbers[DrawnFrame] = TableNumbers()
    columns: dict[str, list[int]] = {"depths": [], "frames": [], "samples": [], "before": [], "after": []}
    whole = [max(1, named.samples) for named in (before, after)]
    for depth, frame, counts in _nodes(before, after):
        width = sum(SCALE * count / total for count, total in zip(counts, whole, strict=True))
        for name, value in zip(columns, (depth, frames.of(frame), round(width), *counts), strict=True):
            columns[name].append(value)
    notes = [f"Red: a larger share of the second profile; blue: a smaller one. Before: {_of(before)}; after: {_of(after)}"]
    notes += [f"{_in_words(one)}: {one.function} ({one.object})" for one in share_changes(before, after)[:ROWS]]
    data: dict[str, Any] = page_texts("Difference of two profiles", notes) | columns | frame_columns(frames.items)
    return html_page(TEMPLATE, {"DATA": json_element(data)})


def _nodes(before: Named, after: Named) -> Iterator[tuple[int, DrawnFrame, list[int]]]:
    """Return (depth, frame, samples in both) in preorder, children in alphabetical order."""
    root = _Node()
    for at, named in enumerate((before, after)):
        path = [root]
        for depth, frame, count in preorder(named, max(1, named.samples // SMALLEST)):
            del path[depth + 1 :]
            node = path[depth].children.setdefault(frame, _Node())
            node.counts[at] += count
            path.append(node)
    waiting = [(0, *item) for item in root.children.items()]
    while waiting:
        depth, frame, node = waiting.pop()
        yield depth, frame, node.counts
        waiting.extend((depth + 1, *item) for item in sorted(node.children.items(), key=lambda item: item[0], reverse=True))
