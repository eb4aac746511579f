"""Groups of stacks, and trees whose frames are labels, as flame graphs and folded stacks show them."""

from __future__ import annotations

from array import array
from collections import Counter
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from sframegen.base.columns import zeros
from sframegen.profile.report.formats.row_kinds import TableNumbers
from sframegen.profile.report.tree_passes import RecentNodes, count_groups, count_rows, merge_labels, order_rows
from sframegen.profile.sampling_plan import Grouping
from sframegen.profile.stacks.call_tree import CallTree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sframegen.base.columns import Column
    from sframegen.profile.report.named import Named, NamedFrame
    from sframegen.profile.stacks.tasks import Task

UNKNOWN = "[unknown]"
OF_TASKS: dict[str, Callable[[Task], str]] = {
    Grouping.COMM: lambda task: task.thread or task.process or str(task.tid or task.pid),
    Grouping.PID: lambda task: f"{task.process} (pid {task.pid})",
    Grouping.TID: lambda task: f"{task.thread or task.process} (tid {task.tid or task.pid})",
}


def group_stacks(named: Named, by: str) -> Named:
    """Give each row its group. `by`: a Grouping."""
    numbers: dict[str, int] = {}
    tree, places = named.tree, named.places
    if by == Grouping.OBJECT:
        of_site = [numbers.setdefault(site.object or UNKNOWN, len(numbers)) for site in places.sites]
        none = numbers.setdefault(UNKNOWN, len(numbers))
        nodes = map(tree.node_of, range(tree.rows.count))
        frames, sites = tree.nodes.first, places.numbered.second
        groups = array("I", (of_site[sites[frames[node]]] if node else none for node in nodes))
    else:
        name = OF_TASKS[by]
        of_task = [numbers.setdefault(name(task), len(numbers)) for task in named.tasks]
        groups = array("I", map(of_task.__getitem__, tree.rows.second[: tree.rows.count]))
    named.by, named.groups, named.group_of = by, [*numbers], groups
    return named


def counts_of_groups(named: Named) -> Counter[str]:
    totals = array("Q", bytes(8 * len(named.groups)))
    for part in named.room.parts(named.tree.rows.count):
        count_groups(named.tree, named.group_of, totals, part)
    return Counter({group: count for group, count in zip(named.groups, totals, strict=True) if count})


T = TypeVar("T")
HELD = 1 << 16  # nodes: more than a process has, as a rule
ROWS = 1 << 14  # merged rows, after which memory of columns in files is released


class LabelTrees(Generic[T]):
    """Makes trees of labels. `key` returns a site's label: frames of equal labels are one. `labels`: all of them, by number."""

    def __init__(self, named: Named, key: Callable[[NamedFrame], T]) -> None:
        numbers: TableNumbers[T] = TableNumbers()
        self._named = named
        self.label_of = array("I", [numbers.of(key(site)) for site in named.places.sites])
        self.labels = numbers.items
        self.tree = CallTree(named.room)
        self._recent = RecentNodes(zeros("I", HELD), zeros("Q", HELD), zeros("I", named.max_depth))
        self._turn = self._rows = 0

    def merge(self, rows: Column) -> CallTree:
        """Return the tree of these rows; the next call fills the same object again."""
        self._turn += 1
        self.tree.clear()
        tree, places = self._named.tree, self._named.places.numbered
        for start in range(0, len(rows), ROWS):
            part = rows[start : start + ROWS]
            merge_labels(tree, places, self.label_of, part, self._turn, self._recent, self.tree)
            self._rows += len(part)
            if self._rows >= ROWS:
                self._rows = 0
                self._named.room.limit_file_memory()
        return self.tree

    def path(self, node: int) -> list[T]:
        """Return the labels from the outermost one down to that node of the tree."""
        return self.tree.items(node, self.labels)


class GroupedRows(NamedTuple):
    """Rows ordered by group. `ends`: where each group ends in `rows`; there may be hundreds of thousands."""

    rows: Column
    ends: Column

    def of(self, group: int) -> Column:
        return self.rows[self.ends[group - 1] if group else 0 : self.ends[group]]

    def of_each(self) -> Iterator[Column]:
        return map(self.of, range(len(self.ends)))


@contextmanager
def rows_by_group(named: Named, group_of: Column | None = None, groups: int | None = None) -> Iterator[GroupedRows]:
    """Yield the rows with samples by group, for the block. `group_of`: of each row, below `groups`; by default those of `named`."""
    group_of = named.group_of if group_of is None else group_of
    order, ends = named.room.new_column("I"), zeros("I", len(named.groups) if groups is None else groups)
    named.room.grow(order, max(1, named.tree.rows.count))
    for part in named.room.parts(named.tree.rows.count):
        count_rows(named.tree, group_of, ends, part)
    ends[:] = array("I", [*accumulate(ends, initial=0)][:-1])  # until they are filled: where they begin
    for part in named.room.parts(named.tree.rows.count):
        order_rows(named.tree, group_of, ends, order.view, part)
    with order.view.toreadonly() as view:
        yield GroupedRows(view, ends)
    named.room.drop(order)


@contextmanager
def all_rows(named: Named) -> Iterator[Column]:
    """Yield the rows that have samples, for the block."""
    with rows_by_group(named, zeros("I", named.tree.rows.count), 1) as grouped:
        yield grouped.of(0)
