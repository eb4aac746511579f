"""What was found, in Markdown, put into docs/consumers.md between its two marks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corpus.run.report import table

from .walks import SCENARIOS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from .walks import Compared

BEGIN, END = "<!-- make glibc-show writes this: begin -->", "<!-- end of make glibc-show -->"


def markdown(
    about: str, depths: Sequence[int], found: Mapping[str, Sequence[Compared]], left_out: Mapping[str, Mapping[str, int]]
) -> str:
    """`depths`: frames by DWARF in the first run of each scenario. `found`, `left_out` (bytes of code by reason): by way."""
    reasons = sorted({reason for counts in left_out.values() for reason in counts})
    rows = [
        (scenario.title, depth, *(every[number].text for every in found.values()))
        for number, (scenario, depth) in enumerate(zip(SCENARIOS, depths, strict=True))
    ]
    bytes_of = [(reason, *(counts.get(reason, 0) for counts in left_out.values())) for reason in reasons]
    lines = [about, "", *table(("stack", "frames by DWARF", *found), rows), *table(("bytes left out", *left_out), bytes_of)]
    return "\n".join(lines)


def write(document: Path, text: str) -> None:
    """Replaces what is between the marks."""
    before, _, rest = document.read_text().partition(BEGIN)
    document.write_text(f"{before}{BEGIN}\n{text}{END}{rest.partition(END)[2]}")
