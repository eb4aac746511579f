"""The results of a run, in Markdown: docs/reports/merging.md."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .damage import Tried
    from .parts import Row

HEAD = Path(__file__).with_name("head.md")


def markdown(rows: Sequence[Row], tried: Sequence[Tried], about: str) -> str:
    found = [(row, difference) for row in rows for difference in row.outcome.differences]
    known: Counter[str] = Counter()
    for row in rows:
        known += row.outcome.known
    lines = [HEAD.read_text(), f"One run: {about}.", "", "## Results", ""]
    lines.append(f"{len(rows)} comparisons, {sum(row.outcome.fdes for row in rows):,} FDEs: {len(found)} differences.")
    lines += ["", *(f"- {row.part}, {row.machine}, {row.case}: {difference}" for row, difference in found), *[""] * bool(found)]
    lines += ["Known differences, which are not counted above; [merging.md](../merging.md) describes the first:", ""]
    lines += [*table(("places", "what"), ((f"{count:,}", what) for what, count in known.most_common())), ""]
    for part in dict.fromkeys(row.part for row in rows):
        lines += [f"## {part[0].upper()}{part[1:]}", ""]
        lines += table(
            ("machine", "case", "objects", "FDEs", "rows", "known differences", "result"),
            (_cells(row) for row in rows if row.part == part),
        )
        lines.append("")
    if tried:
        lines += ["## Damaged objects", "", DAMAGED, ""]
        lines += table(
            ("damage", "GNU ld -shared", "merge --map", "merge -o"),
            ((one.damage, one.gnu, one.by_map, one.relocatable) for one in tried),
        )
        lines.append("")
    return "\n".join(lines[:-1]) + "\n"


DAMAGED = (
    "Two objects of two functions each; one is intact, the other's section is damaged. The cells have the exit status,\n"
    "the first line of output, and the result. GNU ld adds two FDEs for the PLT."
)


def _cells(row: Row) -> tuple[object, ...]:
    outcome = row.outcome
    result = f"{len(outcome.differences)} differences" if outcome.differences else "equal"
    case = "; ".join([row.case, *outcome.notes])
    return row.machine, case, row.objects, f"{outcome.fdes:,}", f"{outcome.rows:,}", sum(outcome.known.values()) or "", result


def table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> list[str]:
    def line(cells: Iterable[object]) -> str:
        return f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |"

    return [line(head), line("---" for _ in head), *map(line, rows)]
