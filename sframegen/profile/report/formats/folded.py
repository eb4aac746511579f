"""Folded stacks, one line each, as flamegraph.pl and many others read them: `group;outermost;...;innermost 12`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.profile.report.label_trees import LabelTrees, rows_by_group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.profile.report.named import Named


def folded(named: Named) -> Iterator[str]:
    """Return the lines; equal stacks are one."""
    trees = LabelTrees(named, lambda site: _text(site.label))
    with rows_by_group(named) as groups:
        for group, rows in zip(named.groups, groups, strict=True):
            tree = trees.merge(rows)
            for row in range(tree.rows.count):
                yield f"{';'.join([_text(group), *trees.path(tree.node_of(row))])} {tree.samples[row]}"


def _text(label: str) -> str:
    return label.replace(";", ":")
