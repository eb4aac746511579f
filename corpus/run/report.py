"""The results of a run, summed: docs/measured/run.json."""

from __future__ import annotations

import platform
from collections import Counter
from typing import TYPE_CHECKING

from corpus.run.behaviour import CHECKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corpus.run.behaviour import Behaviour
    from corpus.run.examine import Result

SLOWEST = 10


def summed(results: Sequence[Result], behaviour: Behaviour) -> dict[str, object]:
    added = [result for result in results if result.outcome == "added"]
    seconds = sorted(result.seconds for result in added)
    reasons = Counter((result.outcome, result.reason) for result in results if result.reason)
    first = {(result.outcome, result.reason): result.file for result in reversed(results)}
    return {
        "system": platform.freedesktop_os_release().get("PRETTY_NAME", ""),
        "files": len(results),
        "bytes": sum(result.size for result in results),
        "outcomes": Counter(result.outcome for result in results),
        "differences": [f"{result.file}: {difference}" for result in results for difference in result.differences],
        "code_bytes": sum(result.code_bytes for result in added),
        "covered_bytes": sum(result.covered_bytes for result in added),
        "wholly_covered_files": sum(result.covered_bytes == result.code_bytes for result in added),
        "growth": round(sum(result.size_after for result in added) / max(1, sum(result.size for result in added)) - 1, 4),
        "seconds_of_add_section": round(sum(seconds)),
        "median_seconds": round(seconds[len(seconds) // 2], 3) if seconds else None,
        "programs_were_run": behaviour.may_run,
        "behaviour": [_same(check, added) for check in CHECKS],
        "rules_judged": Counter(result.judged for result in added if result.judged),
        "without_section": [
            {"files": count, "outcome": what[0], "reason": what[1], "such_as": first[what]} for what, count in reasons.most_common()
        ],
        "slowest": [
            {"seconds": round(one.seconds, 2), "bytes": one.size, "file": one.file}
            for one in sorted(results, key=lambda result: -result.seconds)[:SLOWEST]
        ],
    }


def _same(check: str, added: Sequence[Result]) -> dict[str, object]:
    """`unsteady`: files that behave differently without the section, too."""
    statuses = [result.statuses[check] for result in added if check in result.statuses]
    unsteady = sum(check in result.unsteady for result in added)
    return {"same": check, "files": len(statuses), "exit_status_0": statuses.count(0), "unsteady": unsteady}
