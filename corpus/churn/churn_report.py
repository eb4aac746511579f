"""The results of a run, in Markdown: docs/reports/churn.md."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from corpus.churn.long_run import growth
from corpus.report_pages import linux

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from corpus.churn.corrupt import CorruptRow
    from corpus.churn.hostile_user import HostileRow
    from corpus.churn.killing import Killed
    from corpus.churn.long_run import LongRun
    from corpus.churn.restless import Row
    from corpus.churn.truth import Verdict
    from corpus.churn.two_at_once import TwoRow

HEAD = Path(__file__).with_name("head.md")
MIB = 1 << 20
MOST_LOST = 0.02  # of all samples
SHOWN = 10  # moments of the long run


class Results(NamedTuple):
    """What the parts found; None for those that were not run."""

    restless: list[Row] | None = None
    short: list[Row] | None = None
    corrupting: list[CorruptRow] | None = None
    killed: Killed | None = None
    interrupted: Killed | None = None
    twice: Killed | None = None
    two: list[TwoRow] | None = None
    hostile: list[HostileRow] | None = None
    long: LongRun | None = None


def faults_of(results: Results) -> list[str]:
    """Return what is not as it should be."""
    faults: list[str] = []
    for row in (*(results.restless or ()), *(results.short or ())):
        faults += [f"{row.name}: wrong stack, {count} samples: {stack}" for stack, count in row.verdict.wrong.items()]
        faults += [f"{row.name}: {row.run.fault}"] if row.run.fault else []
        if row.verdict.share_lost > MOST_LOST:
            faults.append(f"{row.name}: {100 * row.verdict.share_lost:.1f} % of the samples are lost")
    for kind, group in (("corrupting", results.corrupting), ("two", results.two), ("hostile", results.hostile)):
        faults += [f"{kind}: {one[0]}: {fault}" for one in group or () for fault in one.faults]
    for name in ("killed", "interrupted", "twice"):
        killed: Killed | None = getattr(results, name)
        faults += [f"{name}: {fault}" for fault in (killed.faults if killed else ())]
        if killed and not killed.seen and name != "twice":  # a report may end before the second signal
            faults.append(f"{name}: none of {killed.times} while it sampled")
    if results.long and (results.long.status or not results.long.uses):
        faults.append(f"long run: status {results.long.status}: {results.long.printed[-300:]}")
    return faults


def markdown(results: Results, command: str, seconds: float) -> str:
    about = f"`{command}`, Python {platform.python_version()}, {linux()}; {seconds:,.0f} s"
    lines = [HEAD.read_text() + f"One run: {about}.", ""]
    for part in (_restless, _corrupting, _killed, _two, _hostile, _long):
        lines += part(results)
    faults = faults_of(results)
    lines += ["## Faults", "", *(f"- {fault}" for fault in faults or ["none"])]
    return "\n".join(lines) + "\n"


def _restless(results: Results) -> Iterator[str]:
    rows = [*(results.restless or ()), *(results.short or ())]
    if not rows:
        return
    yield from ("## Restless processes", "")
    head = ("processes", "samples", "complete", "incomplete", "lost", "wrong", "wrong, with a marked guess")
    yield from _table(head, ([row.name, *_numbers(row.verdict)] for row in rows))
    yield ""
    yield from (_reasons(row.name, row.verdict) for row in rows)
    yield ""


def _corrupting(results: Results) -> Iterator[str]:
    if not results.corrupting:
        return
    yield from ("## Processes that damage what is read of them", "")
    head = ("process", "its samples", "µs a sample", "MiB of the profiler", "others: samples", "others: complete", "others: wrong")
    yield from _table(
        head,
        (
            (
                row.kind, f"{row.samples:,}", f"{row.run.microseconds:.1f}", row.run.peak // MIB,
                f"{row.others.samples:,}", _share(row.others.complete, row.others.samples), len(row.others.wrong),
            )
            for row in results.corrupting
        ),
    )  # fmt: skip
    yield ""


def _killed(results: Results) -> Iterator[str]:
    names = {"killed": "SIGKILL", "interrupted": "SIGINT, SIGTERM", "twice": "SIGINT, and again during the report"}
    found = {text: getattr(results, name) for name, text in names.items() if getattr(results, name)}
    if not found:
        return
    yield from ("## Signals at random moments", "")
    head = ("signal", "times", "while it sampled, or made the report", "slowest end", "faults")
    rows = ((text, one.times, one.seen, f"{one.slowest:.1f} s", len(one.faults)) for text, one in found.items())
    yield from _table(head, rows)
    yield ""


def _two(results: Results) -> Iterator[str]:
    if not results.two:
        return
    yield from ("## Two profilers at once", "")
    head = ("profilers", "samples", "complete", "incomplete", "lost", "wrong", "wrong, with a marked guess")
    yield from _table(head, ([row.name, *_numbers(verdict)] for row in results.two for verdict in row.verdicts))
    yield ""
    yield from (_reasons(row.name, verdict) for row in results.two for verdict in row.verdicts)
    yield ""


def _hostile(results: Results) -> Iterator[str]:
    if not results.hostile:
        return
    yield from ("## A hostile user", "")
    rows = ((row.kind, f"{row.seconds:.1f}", row.peak // MIB, len(row.faults)) for row in results.hostile)
    yield from _table(("what the user does", "seconds", "MiB of the profiler", "faults"), rows)
    yield ""


def _long(results: Results) -> Iterator[str]:
    if not results.long or not results.long.uses:
        return
    uses = results.long.uses
    yield from (f"## {uses[-1].seconds / 60:.0f} minutes of the whole machine", "")
    shown = uses[:: max(1, len(uses) // SHOWN)]
    rows = (
        (
            f"{use.seconds / 60:.1f}",
            *(getattr(use, name) // MIB for name in ("resident", "workers", "maps", "tables")),
            use.descriptors,
        )
        for use in [*shown, *([uses[-1]] if uses[-1] not in shown else [])]
    )
    yield from _table(("minutes", "MiB resident", "of its workers", "maps without tables", "tables", "descriptors"), rows)
    factors = ", ".join(f"{name} {factor:.2f}" for name, factor in growth(uses).items() if factor)
    yield from ("", f"Growth from a quarter of the time to the end, as a factor: {factors}.", "")
    yield from ("    " + line for line in results.long.printed.splitlines()[-SHOWN:])
    yield ""


def _reasons(name: str, verdict: Verdict) -> str:
    return f"- {name}: {_counts({**verdict.incomplete, **verdict.lost}) or 'all complete'}"


def _numbers(verdict: Verdict) -> tuple[str, ...]:
    total = verdict.samples + sum(verdict.lost.values())
    parts = (verdict.complete, sum(verdict.incomplete.values()), sum(verdict.lost.values()))
    return (
        f"{verdict.samples:,}",
        *(_share(part, total) for part in parts),
        f"{sum(verdict.wrong.values())}",
        f"{verdict.guessed_wrong}",
    )


def _share(part: int, whole: int) -> str:
    return f"{100 * part / max(1, whole):.2f} %"


def _counts(counts: dict[str, int]) -> str:
    return "; ".join(f"{count:,} {reason}" for reason, count in sorted(counts.items(), key=lambda item: -item[1]))


def _table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    yield "| " + " | ".join(map(str, head)) + " |"
    yield "| " + " | ".join("---" for _ in head) + " |"
    for row in rows:
        yield "| " + " | ".join(map(str, row)) + " |"
