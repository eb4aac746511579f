"""Folded stacks, one line each, as flamegraph.pl and many others read them: `group;outermost;...;innermost 12`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.profile.report.named import Named


def folded(named: Named) -> Iterator[str]:
    """Return the lines; equal stacks are one."""
    counts: Counter[tuple[str, ...]] = Counter()
    for stack in named.stacks:
        counts[stack.labels] += stack.count
    for labels, count in counts.items():
        yield f"{';'.join(label.replace(';', ':') for label in labels)} {count}"
