"""What stacks are grouped by: the outermost level of all formats."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from sframegen.profile.report.named import Named, NamedStack

GROUPS: dict[str, Callable[[NamedStack], str]] = {
    "comm": lambda stack: stack.thread or stack.process or str(stack.tid or stack.pid),
    "pid": lambda stack: f"{stack.process} (pid {stack.pid})",
    "tid": lambda stack: f"{stack.thread or stack.process} (tid {stack.tid or stack.pid})",
    "object": lambda stack: (stack.frames[-1].object if stack.frames else "") or "[unknown]",
}


def group_stacks(named: Named, by: str) -> Named:
    """Give each stack its group. `by`: a key of GROUPS."""
    for stack in named.stacks:
        stack.group = GROUPS[by](stack)
    named.by = by
    return named


def counts_of_groups(named: Named) -> Counter[str]:
    counts: Counter[str] = Counter()
    for stack in named.stacks:
        counts[stack.group] += stack.count
    return counts
