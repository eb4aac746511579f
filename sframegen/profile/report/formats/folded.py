"""Folded stacks, one line each, as flamegraph.pl and many others read them: `group;outermost;...;innermost 12`."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from sframegen.profile.report.formats.path_bytes import PathTexts
from sframegen.profile.report.label_trees import LabelTrees, rows_by_group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.profile.report.named import Named

SEPARATOR = b";"


def folded(named: Named) -> Iterator[bytes]:
    """Return the parts of the lines; equal stacks are one."""
    trees = LabelTrees(named, lambda site: _text(named.label(site)))
    paths = PathTexts(trees.tree, array("I", range(len(trees.labels))), trees.labels, named.max_depth, SEPARATOR)
    with rows_by_group(named) as groups:
        for group, rows in zip(named.groups, groups, strict=True):
            tree, first = trees.merge(rows), _text(group)
            begin = first + SEPARATOR
            for row in range(tree.rows.count):
                node = tree.node_of(row)
                yield begin + paths.text(node) if node else first
                yield b" %d\n" % tree.samples[row]


def _text(label: str) -> bytes:
    return label.encode(errors="replace").replace(SEPARATOR, b":")
