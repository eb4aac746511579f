"""The results of a run, in Markdown: docs/reports/symbols.md."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from corpus.merge.report import table
from corpus.symbols.judge import Outcome, symbolizer

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Sequence

    from corpus.symbols.subjects import Subject

ABOUT_TIMES = """The index is made once for each file, in a process of its own. Addresses a second: with the index that was
kept, with the start of that process, names not demangled. llvm-symbolizer reads the file each time."""
HEAD = Path(__file__).with_name("head.md")


class Times(NamedTuple):
    """Seconds to make the index and ask once; addresses a second of ours, and of llvm-symbolizer."""

    made: float
    rate: float
    llvm_rate: float


class Row(NamedTuple):
    """One program. `inlined`: functions inlined at all its addresses together; `bytes`: of the file with debug information."""

    subject: Subject
    addresses: int
    inlined: int
    outcomes: Counter[Outcome]
    bytes: int
    times: Times


def markdown(rows: Sequence[Row], left_out: Iterable[str], command: str) -> str:
    total, inlined = sum(row.addresses for row in rows), sum(row.inlined for row in rows)
    different = sum(row.outcomes[Outcome.DIFFERENT] for row in rows)
    missing = "".join(f" Left out: {one}." for one in left_out)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    lines = [
        f"{HEAD.read_text()}One run: `{command}`, symbolic {_symbolic()}, {_llvm()}; load averages after it: {load}.{missing}",
        *("", "## Results", ""),
        f"{total:,} addresses, {inlined:,} inlined functions at them: **{different:,} differences that no rule explains**.",
        "",
        *table(
            ("program", "what it is", "addresses", "inlined", *(outcome.value for outcome in Outcome)),
            [
                (
                    *(row.subject.name, row.subject.what, f"{row.addresses:,}", f"{row.inlined:,}"),
                    *(f"{row.outcomes[outcome]:,}" for outcome in Outcome),
                )
                for row in rows
            ],
        ),
        *("", "## Time", ""),
        ABOUT_TIMES,
        "",
        *table(
            ("program", "MB of debug file", "s to make the index", "addresses a second", "llvm-symbolizer"),
            [
                (row.subject.name, f"{row.bytes / 1e6:.1f}", f"{made:.2f}", f"{rate:,.0f}", f"{llvm_rate:,.0f}")
                for row in rows
                for made, rate, llvm_rate in [row.times]
            ],
        ),
    ]
    return "\n".join(lines) + "\n"


def _symbolic() -> str:
    from importlib.metadata import version  # noqa: PLC0415 - needs the extra

    return version("symbolic")


def _llvm() -> str:
    text = subprocess.run([symbolizer(), "--version"], text=True, check=True, capture_output=True).stdout
    return next((line.strip() for line in text.splitlines() if "version" in line), "llvm-symbolizer")
