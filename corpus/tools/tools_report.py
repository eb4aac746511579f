"""The results, as docs/measured/tools.json has them."""

from __future__ import annotations

import platform
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from corpus.tools.trial import AFTER, BEFORE, BREAKS, REFUSED, TOOL_REFUSES, WORKS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

VERSION = re.compile(r" \d\S*?(?=,|$)")
ORDERS = (AFTER, BEFORE)
DIRECTORY = re.compile(r"/\S*/")
NUMBER = re.compile(r"0x[0-9a-f]+|\b\d{3,}\b")
KINDS = ("non-PIE", "PIE", "static", "static-PIE", "library")


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


def summed(found: Sequence[Result], left_out: Mapping[str, str]) -> dict[str, object]:
    """`uses`: verdicts by kind of file, of each use of a tool; `tools`: of all uses, versions without faults together."""
    return {
        "system": platform.freedesktop_os_release()["PRETTY_NAME"],
        "verdicts": {order: Counter(r.mark for r in found if r.order == order) for order in ORDERS},
        "faulty": {order: sum(r.is_fault for r in found if r.order == order) for order in ORDERS},
        "faults": [{"fault": r.kind_of_fault, "tools": r.tools, "use": r.invocation, "file": f"{r.kind}: {r.subject}"}
                   for r in found if r.is_fault],
        "tools": [record for order in ORDERS for record in of_tools(order, [r for r in found if r.order == order])],
        "uses": [record for order in ORDERS for record in of_uses(order, [r for r in found if r.order == order])],
        "not_tried": left_out,
    }  # fmt: skip


def of_uses(order: str, found: Sequence[Result]) -> Iterator[dict[str, object]]:
    uses: dict[tuple[str, str], dict[str, Counter[str]]] = {}
    for r in found:
        uses.setdefault((r.tools, r.invocation), {}).setdefault(r.kind, Counter())[r.mark + " with a fault" * bool(r.faults)] += 1
    for (tools, use), kinds in uses.items():
        yield {"order": order, "tools": tools, "use": use, **kinds}


def of_tools(order: str, found: Sequence[Result]) -> Iterator[dict[str, object]]:
    groups: dict[tuple[str, str], dict[str, list[Result]]] = {}
    faulty = {r.tools for r in found if r.is_fault}
    for r in found:
        programs, versions = " and ".join(VERSION.sub("", r.tools).split(", ")), versions_of(r.tools)
        groups.setdefault((programs, versions if r.tools in faulty else ""), {}).setdefault(versions, []).append(r)
    for (programs, _), by_version in groups.items():
        together = [r for of_version in by_version.values() for r in of_version]
        verdicts = {kind: judged([r for r in together if r.kind == kind]) for kind in KINDS}
        yield {"order": order, "tools": programs, "versions": list(by_version), **verdicts}


def versions_of(tools: str) -> str:
    return " + ".join(dict.fromkeys(word.strip() for word in VERSION.findall(tools)))


def judged(found: Sequence[Result]) -> str:
    marks = {r.mark for r in found}
    if wrong := sum(r.is_fault for r in found):
        return f"{wrong} of {len(found)} have faults"
    if not marks:
        return "-"
    return marks.pop() if len(marks) == 1 and WORKS not in marks else "yes"
