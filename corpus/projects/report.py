"""The results of a run, in Markdown: docs/reports/projects.md."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from corpus.merge.report import table

from .linkers import NONE, SECTION, UNTOUCHED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .badnews import News
    from .judge import Judged
    from .linkers import Cell

HEAD = Path(__file__).with_name("head.md")
COLUMNS = (
    "project", "build system", "sources", "linked files", "functions", "section bytes", "tests passed", "unchanged after remove",
    "not reproducible", "CPU s, plain", "with", "result",
)  # fmt: skip
LINKERS = """\
A program of two C++ files that throws and catches, a library of one of them, an object with `-r`; linked with gcc, or with clang
for `-flto` with lld. Each is also linked without the step. The output is the same except for warnings, programs still run, and
a file without a section, or after its removal, is the linker's file byte for byte if two links of the linker are equal."""
BAD_NEWS = """\
`xzdec`, linked again in the build of xz with the step. Missing: the package that the shims name has been removed. Killed: SIGKILL
ends the process that adds the section."""


def markdown(judged: Sequence[Judged], cells: Sequence[Cell], news: Sequence[News], about: str) -> str:
    results: list[Judged | Cell | News] = [*judged, *cells, *news]
    found = [difference for one in results for difference in named(one)]
    lines = [HEAD.read_text(), f"One run: {about}. {len(found)} differences.", *[""] * bool(found)]
    lines += [f"- {difference}" for difference in found]
    if judged:
        lines += ["", "## Projects", "", *table(COLUMNS, map(row, judged))]
        lines += [
            "",
            "CPU s: of configure and the first build, all processes. sources: files of the pattern in the manifest.",
        ]
        lines += [""] * any(one.notes for one in judged)
        lines += [f"- {one.project.name} is not as recorded: {note}" for one in judged for note in one.notes]
        lines += ["", "## Build commands"]
        for one in judged:
            project = one.project
            lines += [
                "",
                f"### {project.name}",
                "",
                f"[{project.document}](../{project.document}). Without the step, and with it:",
                "",
            ]
            for with_step in (False, True):
                commands = [project.command(which, with_step=with_step) for which in ("configure", "build", "test")]
                before = [project.command("before", with_step=True)] if with_step else []
                lines += ["```sh", *filter(None, before + commands), "```", ""]
            lines.pop()
    if cells:
        lines += ["", "## Linkers", "", LINKERS, "", *linkers(cells)]
    if news:
        lines += ["", "## Failures", "", BAD_NEWS, ""]
        head = ("sframegen", "--strict", "exit status of the build", "message", "the program")
        lines += table(head, ((one.what, "yes" if one.fatal else "", one.status, f"`{one.said}`", one.program) for one in news))
    return "\n".join(lines) + "\n"


def named(one: Judged | Cell | News) -> list[str]:
    name = getattr(one, "project", None) or one
    label = getattr(name, "name", "") or f"{getattr(one, 'linker', 'bad news')} {getattr(one, 'kind', '')}".strip()
    return [f"{label}: {difference}" for difference in one.differences]


def row(one: Judged) -> tuple[object, ...]:
    return (
        f"{one.project.name} {one.version}", one.project.system, one.sources, one.outputs, f"{one.functions:,}",
        f"{one.section_bytes:,}", one.passed or "all", one.restored, one.varying or "",
        *(f"{seconds:.0f}" for seconds in one.seconds),
        f"{len(one.differences)} differences" if one.differences else "good",
    )  # fmt: skip


def linkers(cells: Sequence[Cell]) -> list[str]:
    """A table of outcomes; what warnings say stands below it, once."""
    refusals = [cell.outcome for cell in cells if cell.outcome not in (SECTION, UNTOUCHED, NONE)]
    numbers = {said: number for number, said in enumerate(Counter(refusals), 1)}
    kinds = list(dict.fromkeys(cell.kind for cell in cells))
    by_place = {(cell.linker, cell.kind): numbers.get(cell.outcome, cell.outcome) for cell in cells}
    names = dict.fromkeys(cell.linker for cell in cells)
    rows = [
        (name, *(f"warning {cell}" if isinstance(cell := by_place[name, kind], int) else cell for kind in kinds)) for name in names
    ]
    return [*table(("linker", *kinds), rows), "", *(f"{number}. `{said}`" for said, number in numbers.items())]
