"""What known readers do with a section: for the C code that `sframegen check` restates, and as it was measured, for the others.

This is about readers, not about the specification: the only part of the suite that asks sframegen.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sframegen.checks.consumers import CONSUMERS, EFFECTS, find_unmet_demands
from sframegen.checks.specification.wellformed import examine_section
from sframegen.format.layouts import LAYOUTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.case import Case

MEASURED = Path(__file__).with_name("measured.json")
RESTATED = ("kernel", "glibc")  # the others are measured


@cache
def measured() -> dict[str, dict[str, str]]:
    """By reader and case: what it does, where that is not what the specification says. `python -m corpus.conformance` writes it."""
    found: dict[str, dict[str, str]] = json.loads(MEASURED.read_text(encoding="utf-8"))
    return found


def known(case: Case) -> Iterator[dict[str, str]]:
    """`reader`, `does` and `why`, where a reader differs from an ideal one, and where it does worse than refuse damage."""
    facts = examine_section(case.section, case.address, executable=[case.code], byte_order=case.machine.byte_order)
    for name in RESTATED:
        consumer = CONSUMERS[name]
        if case.version in consumer.versions or case.version not in LAYOUTS:
            for demand in find_unmet_demands(facts, name):
                yield {"reader": f"{consumer.title}, {consumer.source}", "does": EFFECTS[demand.effect][0], "why": demand.fault}
        else:
            yield {"reader": f"{consumer.title}, {consumer.source}", "does": "does not read this version", "why": ""}
    for reader, cases in measured().items():
        if case.name in cases:
            yield {"reader": reader, "does": cases[case.name], "why": "measured"}
