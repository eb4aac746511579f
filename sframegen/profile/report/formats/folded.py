"""Folded stacks, one line each, as flamegraph.pl and many others read them: `group;outermost;...;innermost 12`."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from sframegen.profile.report.formats.path_bytes import NumberedBytes, PathTexts
from sframegen.profile.report.label_trees import LabelTrees, rows_by_group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.profile.report.named import Named

SEPARATOR = b";"


def folded(named: Named) -> Iterator[bytes]:
    """Return the parts of the lines; equal stacks are one."""
    trees = LabelTrees(named, lambda site: _text(named.label(site)))
    texts = NumberedBytes(trees.labels, SEPARATOR)
    paths = PathTexts(trees.tree, array("I", range(len(trees.labels))), texts, named.max_depth)
    with rows_by_group(named) as grouped:
        for group, rows in zip(named.groups, grouped.of_each(), strict=True):
            tree, first = trees.merge(rows), _text(group)
            begin, row = NumberedBytes((first, first + SEPARATOR, b" ", b"\n")), 0
            while row < tree.rows.count:
                row = paths.put_lines(row, begin)
                if paths.block.is_full():
                    yield paths.block.taken()
    yield paths.block.taken()


def _text(label: str) -> bytes:
    return label.encode(errors="replace").replace(SEPARATOR, b":")
