"""What stacks are grouped by: the outermost level of all formats."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import TYPE_CHECKING

from sframegen.profile.report.label_counts import count_groups

if TYPE_CHECKING:
    from collections.abc import Callable

    from sframegen.profile.report.named import Named
    from sframegen.profile.stacks.tasks import Task

OBJECT, CGROUP = "object", "cgroup"
UNKNOWN = "[unknown]"
OF_TASKS: dict[str, Callable[[Task], str]] = {
    "comm": lambda task: task.thread or task.process or str(task.tid or task.pid),
    "pid": lambda task: f"{task.process} (pid {task.pid})",
    "tid": lambda task: f"{task.thread or task.process} (tid {task.tid or task.pid})",
}
GROUPS = (*OF_TASKS, OBJECT, CGROUP)


def group_stacks(named: Named, by: str) -> Named:
    """Give each row its group. `by`: one of GROUPS."""
    numbers: dict[str, int] = {}
    tree, places = named.tree, named.places
    if by == OBJECT:
        of_site = [numbers.setdefault(site.object or UNKNOWN, len(numbers)) for site in places.sites]
        none = numbers.setdefault(UNKNOWN, len(numbers))
        nodes = map(tree.node_of, range(tree.rows.count))
        frames, sites = tree.nodes.first, places.numbered.second
        groups = array("I", (of_site[sites[frames[node]]] if node else none for node in nodes))
    else:
        name = OF_TASKS.get(by) or (lambda task: named.cgroups.get(task.pid, UNKNOWN))
        of_task = [numbers.setdefault(name(task), len(numbers)) for task in named.tasks]
        groups = array("I", map(of_task.__getitem__, tree.rows.second[: tree.rows.count]))
    named.by, named.groups, named.group_of = by, [*numbers], groups
    return named


def counts_of_groups(named: Named) -> Counter[str]:
    totals = array("Q", bytes(8 * len(named.groups)))
    for part in named.room.parts(named.tree.rows.count):
        count_groups(named.tree, named.group_of, totals, part)
    return Counter({group: count for group, count in zip(named.groups, totals, strict=True) if count})
