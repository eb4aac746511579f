"""Groups the stacks of a profile, and merges them into trees of labels, as flame graphs and folded stacks show them."""

from __future__ import annotations

from array import array
from collections import Counter
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from sframegen.base.columns import zeros
from sframegen.profile.report.formats.row_kinds import NumberedItems
from sframegen.profile.report.tree_passes import RecentNodes, add_group_samples, count_group_rows, fill_rows_by_group, merge_labels
from sframegen.profile.sampling_plan import Grouping
from sframegen.profile.stacks.call_tree import CallTree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sframegen.base.columns import Column
    from sframegen.profile.report.named import NamedFrame, NamedProfile
    from sframegen.profile.stacks.tasks import Task

UNKNOWN_OBJECT = "[unknown]"
TASK_LABELS: dict[str, Callable[[Task], str]] = {  # the group of a task, by the --by option
    Grouping.COMM: lambda task: task.thread or task.process or str(task.tid or task.pid),
    Grouping.PID: lambda task: f"{task.process} (pid {task.pid})",
    Grouping.TID: lambda task: f"{task.thread or task.process} (tid {task.tid or task.pid})",
}


def group_stacks(named: NamedProfile, by: str) -> NamedProfile:
    """Set the group of each row of the profile. `by`: a Grouping; Grouping.OBJECT is the object of the innermost frame."""
    numbers: dict[str, int] = {}  # of groups, by name
    tree, locations = named.tree, named.locations
    if by == Grouping.OBJECT:
        of_site = [numbers.setdefault(site.object or UNKNOWN_OBJECT, len(numbers)) for site in locations.sites]
        unknown = numbers.setdefault(UNKNOWN_OBJECT, len(numbers))
        nodes = map(tree.node_of, range(tree.rows.count))
        frames, sites = tree.nodes.first, locations.numbered.second
        groups = array("I", (of_site[sites[frames[node]]] if node else unknown for node in nodes))
    else:
        format_task = TASK_LABELS[by]
        of_task = [numbers.setdefault(format_task(task), len(numbers)) for task in named.tasks]
        groups = array("I", map(of_task.__getitem__, tree.rows.second[: tree.rows.count]))
    named.by, named.groups, named.group_of = by, [*numbers], groups
    return named


def count_samples_by_group(named: NamedProfile) -> Counter[str]:
    totals = array("Q", bytes(8 * len(named.groups)))
    for part in named.room.parts(named.tree.rows.count):
        add_group_samples(named.tree, named.group_of, totals, part)
    return Counter({group: count for group, count in zip(named.groups, totals, strict=True) if count})


T = TypeVar("T")
CACHED_NODES = 1 << 16  # more than most processes have
MERGED_ROWS = 1 << 14  # rows to merge before the memory of columns in files is released again


class LabelTrees(Generic[T]):
    """Merges stacks into trees of labels. `key` returns the label of a site; `labels` has the labels by number."""

    def __init__(self, named: NamedProfile, key: Callable[[NamedFrame], T]) -> None:
        numbers: NumberedItems[T] = NumberedItems()
        self._named = named
        self.label_of = array("I", [numbers.number_of(key(site)) for site in named.locations.sites])
        self.labels = numbers.items
        self.tree = CallTree(named.room)
        self._recent = RecentNodes(zeros("I", CACHED_NODES), zeros("Q", CACHED_NODES), zeros("I", named.max_depth))
        self._epoch = self._rows_since_release = 0

    def merge_rows(self, rows: Column) -> CallTree:
        """Return the tree of these rows. It is valid until the next call, which fills the same object again."""
        self._epoch += 1
        self.tree.clear()
        tree, locations = self._named.tree, self._named.locations.numbered
        for start in range(0, len(rows), MERGED_ROWS):
            part = rows[start : start + MERGED_ROWS]
            merge_labels(tree, locations, self.label_of, part, self._epoch, self._recent, self.tree)
            self._rows_since_release += len(part)
            if self._rows_since_release >= MERGED_ROWS:
                self._rows_since_release = 0
                self._named.room.limit_file_memory()
        return self.tree


class GroupedRows(NamedTuple):
    """Rows ordered by group. `ends`: for each group, where it ends in `rows`; a column, as there may be 100,000s of groups."""

    rows: Column
    ends: Column

    def rows_of(self, group: int) -> Column:
        return self.rows[self.ends[group - 1] if group else 0 : self.ends[group]]

    def by_group(self) -> Iterator[Column]:
        return map(self.rows_of, range(len(self.ends)))


@contextmanager
def order_rows_by_group(named: NamedProfile, group_of: Column | None = None, groups: int | None = None) -> Iterator[GroupedRows]:
    """Yield the rows with samples by group, for the block. `group_of`: by row, less than `groups`; by default that of `named`."""
    group_of = named.group_of if group_of is None else group_of
    order, ends = named.room.new_column("I"), zeros("I", len(named.groups) if groups is None else groups)
    named.room.grow(order, max(1, named.tree.rows.count))
    for part in named.room.parts(named.tree.rows.count):
        count_group_rows(named.tree, group_of, ends, part)
    ends[:] = array("I", [*accumulate(ends, initial=0)][:-1])  # from sizes to starts, which become ends as the groups are filled
    for part in named.room.parts(named.tree.rows.count):
        fill_rows_by_group(named.tree, group_of, ends, order.view, part)
    with order.view.toreadonly() as view:
        yield GroupedRows(view, ends)
    named.room.drop(order)


@contextmanager
def rows_with_samples(named: NamedProfile) -> Iterator[Column]:
    """Yield the rows that have samples, for the block."""
    with order_rows_by_group(named, zeros("I", named.tree.rows.count), 1) as grouped:
        yield grouped.rows_of(0)
