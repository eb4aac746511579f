"""The results, in Markdown."""

from __future__ import annotations

import platform
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from corpus.run.report import table
from corpus.tools.trial import AFTER, BEFORE, BREAKS, LOST, NO_BETTER, REFUSED, TOOL_REFUSES, WORKS

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

HEAD = Path(__file__).with_name("head.md")
ORDERS = (AFTER, BEFORE)
DIRECTORY = re.compile(r"/\S*/")
NUMBER = re.compile(r"0x[0-9a-f]+|\b\d{3,}\b")
REPEATED = "To repeat a job: `python -m corpus.tools --files 'KIND: FILE' --tools 'TOOLS: INVOCATION'`."
KINDS = ("non-PIE", "PIE", "static", "static-PIE", "library")
MARKS = (WORKS, BREAKS, TOOL_REFUSES, REFUSED, LOST, NO_BETTER)


@dataclass
class Result:
    subject: str
    kind: str
    tools: str
    invocation: str
    order: str
    mark: str
    why: str
    faults: list[str]

    @property
    def is_fault(self) -> bool:
        return self.mark in (BREAKS, TOOL_REFUSES, REFUSED) or bool(self.faults)

    @property
    def line(self) -> str:
        return f"{self.kind}: {self.subject}; {self.tools}: {self.invocation}; {self.kind_of_fault}"

    @property
    def kind_of_fault(self) -> str:
        """The same for faults that are likely to have one cause."""
        told = "; ".join([f"{self.mark}{': ' * bool(self.why)}{self.why}", *self.faults])
        return f"{self.order}: {NUMBER.sub('N', DIRECTORY.sub('', told))}"


def markdown(found: Sequence[Result], left_out: Mapping[str, str], run: str) -> str:
    """`run`: a sentence about it."""
    lines = [HEAD.read_text(), "## Results", "", f"{run} On {platform.freedesktop_os_release()['PRETTY_NAME']}.", ""]
    counts = [(m, *(sum(r.mark == m and r.order == o for r in found) for o in ORDERS)) for m in MARKS]
    counts.append(("with a fault", *(sum(r.is_fault and r.order == o for r in found) for o in ORDERS)))
    lines += table(("", *ORDERS), counts)
    names = list(dict.fromkeys((r.tools, r.invocation) for r in found))
    for order in ORDERS:
        cells = grouped(found, order, lambda r: (r.tools, r.invocation))
        lines += [f"## {order}", ""]
        lines += table(("tools", "", *KINDS), ((*name, *(counted(cells.get((name, k), ())) for k in KINDS)) for name in names))
    return "\n".join([*lines, *faults(found), *not_tried(left_out)]) + "\n"


def faults(found: Sequence[Result]) -> list[str]:
    groups: dict[str, dict[str, list[str]]] = {}
    for r in found:
        if r.is_fault:
            groups.setdefault(r.kind_of_fault, {}).setdefault(f"{r.tools}: {r.invocation}", []).append(f"`{r.kind}: {r.subject}`")
    lines = ["## Faults", "", REPEATED if groups else "None.", ""]
    for kind, of_rows in sorted(groups.items(), key=lambda group: -sum(map(len, group[1].values()))):
        lines += [f"### {kind}", "", f"{sum(map(len, of_rows.values()))} jobs:", ""]
        lines += [f"- {row}; {', '.join(names)}" for row, names in of_rows.items()] + [""]
    return lines


def not_tried(left_out: Mapping[str, str]) -> list[str]:
    return ["## Not tried", "", *(f"- {name}: {why}" for name, why in left_out.items())]


def grouped(found: Iterable[Result], order: str, name: Callable[[Result], Hashable]) -> dict[tuple[Hashable, str], list[Result]]:
    cells: dict[tuple[Hashable, str], list[Result]] = {}
    for r in found:
        if r.order == order:
            cells.setdefault((name(r), r.kind), []).append(r)
    return cells


def counted(found: Iterable[Result]) -> str:
    counts = Counter(f"{r.mark}{' with a fault' * bool(r.faults)}" for r in found)
    return ", ".join(f"{count} {mark}" for mark, count in counts.items()) or "-"
