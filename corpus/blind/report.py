"""The results of a run, in Markdown, put into docs/code.md between its two marks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from corpus.merge.report import table
from sframegen.checks.contradictions import RIGHT, UNDECIDED

from .compare import NOT_FOUND

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .compare import Compared
    from .trial import Trial

BEGIN, END = "<!-- blind test -->", "<!-- end of blind test -->"
FOUND = ("recovered", "right", "different", "not comparable")
COLUMNS = ("file", "code bytes", "functions", *FOUND, *(f"nothing known: {what}" for what in FOUND), "differences by kind")
SPEED = ("file", "decoded MB, all passes", "MB of code a second of processor time", "on the clock")
PLACES = 4  # that are named, of each file


def markdown(trials: Sequence[Trial], pairs: Sequence[tuple[Trial, Trial]], about: str) -> str:
    lines = [f"One run: {about}.", "", *table(COLUMNS, map(_cells, trials)), ""]
    named = [(trial, trial.names) for trial in trials if trial.names]
    if named:
        lines += ["Where they differ, the first places of each:", ""]
        lines += [
            f"- {trial.file.name}: {'; '.join(names[:PLACES])}{f'; and {len(names) - PLACES} more' if len(names) > PLACES else ''}"
            for trial, names in named
        ]
        lines.append("")
    if pairs:
        lines += [f"Speed, load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores:", ""]
        lines += table(
            (*SPEED[:3], "one process, on the clock", "two processes"), ((one.file.name, *_speed(one, two)) for one, two in pairs)
        )
        lines.append("")
    return "\n".join(lines)


def write(document: Path, text: str) -> None:
    """Replaces what is between the marks."""
    before, _, rest = document.read_text().partition(BEGIN)
    document.write_text(f"{before}{BEGIN}\n{text}{END}{rest.partition(END)[2]}")


def _cells(trial: Trial) -> tuple[object, ...]:
    kinds = trial.ranges_known.bytes_by_verdict + trial.nothing_known.bytes_by_verdict
    shown = ", ".join(f"{kind} {count:,}" for kind, count in sorted(kinds.items()) if kind not in (RIGHT, NOT_FOUND, UNDECIDED))
    return (
        trial.file.name, f"{trial.ranges_known.code_bytes:,}", f"{len(trial.functions):,}",
        *_found(trial.ranges_known), *_found(trial.nothing_known), shown,
    )  # fmt: skip


def _found(compared: Compared) -> tuple[str, ...]:
    right = percent(compared.right, compared.right + compared.different, 4)
    return percent(compared.emitted, compared.code_bytes, 2), right, f"{compared.different:,}", f"{compared.incomparable:,}"


def _speed(one: Trial, two: Trial) -> list[str]:
    size = sum(end - start for start, end in one.functions) / 1e6
    return [f"{one.decoded_bytes / 1e6:.1f}", *(f"{size / seconds:.2f}" for seconds in (*one.seconds, two.seconds[1]))]


def percent(part: int, whole: int, digits: int) -> str:
    """Rounded down: 100 only where nothing is missing."""
    scale = 10**digits
    return f"{part * 100 * scale // whole / scale:.{digits}f} %" if whole else "-"
