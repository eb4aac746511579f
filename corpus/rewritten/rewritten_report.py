"""The results of a run, in Markdown: docs/reports/rewritten.md."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from corpus.merge.report import table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .rewriting import Rewritten

HEAD = Path(__file__).with_name("head.md")
COLUMNS = ("package", "version", "ELF files", "with sections", "bytes", "growth", "sections", "seconds")


def markdown(wheels: Sequence[Rewritten], debs: Sequence[Rewritten], about: str) -> str:
    every = [*wheels, *debs]
    found = [f"- {one.name}: {difference}" for one in every for difference in one.differences]
    lines = [HEAD.read_text(), f"One run: {len(wheels)} wheels, {len(debs)} Debian packages, {about}. {len(found)} differences."]
    lines += [*[""] * bool(found), *found]
    for title, results, tried in (("Wheels", wheels, "tests, before and after"), ("Debian packages", debs, "output compared")):
        if results:
            lines += ["", f"## {title}", "", *table((*COLUMNS, tried), map(row, results))]
            files, given = sum(one.elf_files for one in results), sum(one.sections for one in results)
            before, after = (
                sum(path.stat().st_size for path in paths)
                for paths in zip(*((one.before, one.after) for one in results), strict=True)
            )
            lines += ["", f"Together: {given:,} of {files:,} ELF files, {before:,} bytes, {(after - before) / before:+.1%}."]
    if refused := [f"- {one.name}: {line}" for one in every for line in one.refused]:
        lines += ["", "## Refused files", "", *refused]
    return "\n".join(lines) + "\n"


def row(one: Rewritten) -> tuple[object, ...]:
    version = one.before.name.replace("%3a", ":").replace("_" if one.before.suffix == ".deb" else "-", " ").split()[1]
    return (
        one.name, version, f"{one.elf_files:,}", f"{one.sections:,}", f"{one.before.stat().st_size:,}", one.growth,
        f"{one.section_bytes:,}", f"{one.seconds:.1f}", one.tests,
    )  # fmt: skip
