"""The results of a run, in Markdown."""

from __future__ import annotations

import platform
from collections import Counter
from typing import TYPE_CHECKING

from corpus.run.behaviour import CHECKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from corpus.run.behaviour import Behaviour
    from corpus.run.examine import Result

SLOWEST = 10


def markdown(results: Sequence[Result], behaviour: Behaviour) -> str:
    system = platform.freedesktop_os_release().get("PRETTY_NAME", "an unnamed system")
    added = [result for result in results if result.outcome == "added"]
    found = [(result.file, difference) for result in results for difference in result.differences]
    size = sum(result.size for result in results)
    lines = [f"# {len(results):,} files, {size / 1e6:,.0f} MB, of {system} on {platform.machine()}", ""]
    lines += table(("outcome", "files"), Counter(result.outcome for result in results).most_common())
    lines += [f"Found: {len(found)} differences."] + [f"- {file}: {difference}" for file, difference in found] + [""]
    if added:
        lines += [sentence(added), ""]
        lines += behaviours(added, behaviour)
        lines += judgements(added)
    reasons = Counter((result.outcome, result.reason) for result in results if result.reason)
    first = {(result.outcome, result.reason): result.file for result in reversed(results)}
    if reasons:
        lines += ["## Without a section", ""]
        lines += table(
            ("files", "outcome", "why", "such as"), ((count, *what, first[what]) for what, count in reasons.most_common())
        )
    lines += ["## Slowest", ""]
    slowest = sorted(results, key=lambda result: -result.seconds)[:SLOWEST]
    lines += table(("seconds", "MB", "file"), ((f"{r.seconds:.2f}", f"{r.size / 1e6:,.1f}", r.file) for r in slowest))
    return "\n".join(lines[:-1]) + "\n"


def sentence(added: Sequence[Result]) -> str:
    code, covered = (sum(getattr(result, name) for result in added) for name in ("code_bytes", "covered_bytes"))
    before, after = (sum(getattr(result, name) for result in added) for name in ("size", "size_after"))
    seconds = sorted(result.seconds for result in added)
    whole = sum(result.covered_bytes == result.code_bytes for result in added)
    return (
        f"With a section: {covered:,} of {code:,} bytes with CFI covered, {100 * covered / code:.3f} %, all in {whole:,} files. "
        f"Files grow by {100 * (after - before) / before:.2f} %. add-section with verification takes {sum(seconds):.0f} s in all, "
        f"half of the files less than {seconds[len(seconds) // 2]:.3f} s."
    )


def behaviours(added: Sequence[Result], behaviour: Behaviour) -> list[str]:
    rows = []
    for check in CHECKS:
        statuses = [result.statuses[check] for result in added if check in result.statuses]
        unsteady = sum(check in result.unsteady for result in added)
        rows.append((check, len(statuses), statuses.count(0), unsteady))
    note = [] if behaviour.may_run else ["No namespaces here: nothing was started.", ""]
    return table(("same before and after", "files", "exit status 0", "differs without the section too"), rows) + note


def judgements(added: Sequence[Result]) -> list[str]:
    judged = Counter(result.judged for result in added if result.judged)
    return table(("rules, by GNU readelf and libsframe", "files"), judged.most_common()) if judged else []


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A blank line after it."""
    cells = [[f"{cell:,}" if isinstance(cell, int) else str(cell).replace("|", "\\|") for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *cells)] + [""]
