"""The results of a run, as docs/measured/stacks.json has them."""

from __future__ import annotations

import subprocess
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .stops import Row


def results(rows: Sequence[Row], left_out: Iterable[str]) -> dict[str, object]:
    reasons: Counter[tuple[str, str]] = Counter()
    places: dict[str, Counter[str]] = {}
    without: dict[str, set[str]] = {}
    for row in rows:
        reasons.update({(row.mode, reason): count for reason, count in row.reasons.items()})
        places.setdefault(row.workload, Counter()).update(row.places)
        without.setdefault(row.mode, set()).update(row.left_alone)
    return {
        "gdb": subprocess.run(["gdb", "--version"], stdout=subprocess.PIPE, text=True, check=False).stdout.partition("\n")[0],
        "left_out": list(left_out),
        "stops": sum(row.stops for row in rows),
        "stacks": sum(row.threads for row in rows),
        "equal_pcs": sum(row.frames for row in rows),
        "equal_cfas": sum(row.cfas for row in rows),
        "differences": [f"{row.workload}, {row.mode}: {difference}" for row in rows for difference in row.differences],
        "workloads": list(map(_record, rows)),
        "incomplete": [{"mode": mode, "reason": why, "stacks": count} for (mode, why), count in reasons.most_common()],
        "stopped_at": [{"workload": name, "places": found} for name, found in places.items() if found],
        "loaded_without_a_section": without,
    }


def _record(row: Row) -> dict[str, object]:
    """`incomplete`: stacks, by who ends or guesses; `known_by`: frames, by what gave the rule."""
    incomplete: Counter[str] = Counter()
    for reason, count in row.reasons.items():
        incomplete[reason.partition(":")[0].removesuffix(" by the frame pointer")] += count
    return {
        "mode": row.mode,
        "workload": row.workload,
        "stops": row.stops,
        "stacks": row.threads,
        "equal_pcs": row.frames,
        "equal_cfas": row.cfas,
        "equal_to_the_end": row.equal,
        "incomplete": incomplete,
        "differences": len(row.differences),
        "known_by": row.how,
    }
