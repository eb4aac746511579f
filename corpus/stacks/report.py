"""The results of a run, in Markdown: docs/reports/stacks.md."""

from __future__ import annotations

import platform
import subprocess
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from corpus.report_pages import linux

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .stops import Row

HEAD = Path(__file__).with_name("head.md")
# Columns of the table, and how the reasons that they count begin.
KINDS = {"gdb ends": "gdb ends:", "gdb guesses": "gdb guesses:", "we end": "we end:", "we guess": "we guess", "gdb fails": "gdb:"}
WHERE = """
The places of the threads, by workload and over all modes. A function's first instruction is one at which an FDE begins.
"""
WHY = """
The reasons why stacks were not compared to the end. Without CFI, gdb guesses from the code's instructions and continues, rightly or
wrongly. Without CFI, and without a section, sframegen follows the frame pointer, a register that other code may use for anything;
the walk ends where it leads to no return address. In glibc, the instructions after the system call of `clone3` have no CFI, and a
new thread may be stopped there. `_dl_runtime_resolve` keeps its frame in a register that functions it calls may save, and SFrame
does not say where.
"""


def markdown(rows: Sequence[Row], about: str, left_out: Iterable[str]) -> str:
    differences = [(row, difference) for row in rows for difference in row.differences]
    lines = [
        HEAD.read_text() + f"One run: {about}." + "".join(f" Left out: {one}." for one in left_out),
        "",
        "## Results",
        "",
    ]
    stops, threads, frames, cfas = (
        f"{sum(getattr(row, name) for row in rows):,}" for name in ("stops", "threads", "frames", "cfas")
    )
    excused = sum(row.reasons.total() for row in rows)
    lines.append(f"{stops} stops, {threads} stacks, {frames} equal PCs, {cfas} equal CFAs: {len(differences)} differences;")
    lines.append(f"{excused} stacks not compared to the end. The outermost frame has no CFA.")
    lines += ["", *(f"- {row.workload}, {row.mode}: {difference}" for row, difference in differences), *[""] * bool(differences)]
    for mode in dict.fromkeys(row.mode for row in rows):
        kinds = [kind for kind in KINDS if any(_of_kind(row, kind) for row in rows)]
        lines += [f"### {mode[0].upper()}{mode[1:]}", ""]
        lines += _table(
            ("workload", "stops", "stacks", "equal PCs", "equal CFAs", "equal to the end", *kinds, "differences", "known by"),
            ((*_cells(row, kinds), len(row.differences), _how(row)) for row in rows if row.mode == mode),
        )
        alone = sorted({path for row in rows if row.mode == mode for path in row.left_alone})
        lines += ["", *[f"Loaded, and without a section: {', '.join(alone)}.\n"] * bool(alone)]
    lines += ["## Incomplete comparisons", WHY, *_table(("stacks", "mode", "reason"), _reasons(rows)), ""]
    lines += ["## Places of the stops", WHERE, *_places(rows)]
    return "\n".join(lines) + "\n"


def versions() -> str:
    gdb = subprocess.run(["gdb", "--version"], stdout=subprocess.PIPE, text=True, check=False).stdout.partition("\n")[0]
    return f"{gdb.removeprefix('GNU ')}, Python {platform.python_version()}, {linux()}"


def _of_kind(row: Row, kind: str) -> int:
    return sum(count for reason, count in row.reasons.items() if reason.startswith(KINDS[kind]))


def _cells(row: Row, kinds: Iterable[str]) -> Iterable[object]:
    return (
        row.workload,
        row.stops,
        row.threads,
        f"{row.frames:,}",
        f"{row.cfas:,}",
        row.equal,
        *(_of_kind(row, kind) or "" for kind in kinds),
    )


def _how(row: Row) -> str:
    return ", ".join(f"{how} {count:,}" for how, count in row.how.most_common())


def _reasons(rows: Iterable[Row]) -> Iterable[tuple[object, ...]]:
    found = Counter[tuple[str, str]]()
    for row in rows:
        found.update({(row.mode, reason): count for reason, count in row.reasons.items()})
    return ((count, mode, reason) for (mode, reason), count in sorted(found.items(), key=lambda item: (item[0][0], -item[1])))


def _places(rows: Sequence[Row]) -> list[str]:
    places = list(dict.fromkeys(place for row in rows for place in sorted(row.places)))
    by_workload: dict[str, Counter[str]] = {}
    for row in rows:
        by_workload.setdefault(row.workload, Counter()).update(row.places)
    return _table(
        ("workload", *places), ((name, *(found[place] or "" for place in places)) for name, found in by_workload.items() if found)
    )


def _table(head: tuple[str, ...], rows: Iterable[Iterable[object]]) -> list[str]:
    def line(cells: Iterable[object]) -> str:
        return f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |"

    return [line(head), line("---" for _ in head), *map(line, rows)]
