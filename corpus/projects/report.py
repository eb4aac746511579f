"""The results of a run, as docs/measured/projects.json has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .badnews import News
    from .judge import Judged
    from .linkers import Cell


def results(judged: Sequence[Judged], cells: Sequence[Cell], news: Sequence[News]) -> dict[str, object]:
    """`cells`: kinds of link, by linker; `news`: what a build did when the step could not be done."""
    return {"projects": list(map(_record, judged)), "linkers": cells, "failures": news}


def _record(one: Judged) -> dict[str, object]:
    """CPU seconds are those of configure and the first build, without and with the step."""
    return {
        "project": one.project.name,
        "version": one.version,
        "build_system": one.project.system,
        "sources": one.sources,
        "linked_files": one.outputs,
        "functions": one.functions,
        "section_bytes": one.section_bytes,
        "tests_passed": one.passed or "all",
        "restored": one.restored,
        "not_reproducible": one.varying,
        "cpu_seconds": [round(seconds) for seconds in one.seconds],
        "notes": one.notes,
        "differences": one.differences,
    }
