"""What is found, in Markdown, put into docs/reports/contradictions.md between its two marks."""

from __future__ import annotations

import os
import platform
import subprocess
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from corpus.merge.report import table
from corpus.report_pages import linux, measured_with

from .kinds import KINDS, kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .found import Found, Place

BEGIN, END = "<!-- contradictions -->", "<!-- end of contradictions -->"
COLUMNS = ("file", "package", "places", "bytes", "which", "the CFI says, at the first", "the code does")
NAMED = 28  # characters of a function's name
SHOWN = 12  # places of a file


def markdown(every: Sequence[Found]) -> str:
    looked_at = [found for found in every if not found.refused]
    code: Counter[str] = Counter()
    for found in looked_at:
        code.update(found.code)
    total = sum(code.values())
    places = [place for found in looked_at for place in found.places]
    described = sum(any(found.code.values()) for found in looked_at)
    about = (
        f"{measured_with()}, {linux()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}. "
        f"{len(looked_at):,} programs and libraries, {sum(one.size for one in looked_at) / 1e6:,.0f} MB; {described:,} have CFI. "
        f"{len(places):,} places are contradicted, in {sum(bool(found.places) for found in looked_at):,} of them."
    )
    lines = [
        about,
        "",
        *table(
            ("bytes that the CFI describes", "", "share"),
            ((f"{code[what]:,}", what, f"{100 * code[what] / total:.4f} %") for what in code),
        ),
        "",
    ]
    refused = Counter(found.refused.rpartition(": ")[2] for found in every if found.refused)
    lines += [f"Refused: {'; '.join(f'{count:,} ({why})' for why, count in refused.most_common())}.", ""] if refused else []
    names = packages([found.file for found in looked_at if found.places])
    for name, (says, _) in KINDS.items():
        rows = list(_rows(looked_at, name, names))
        if rows:
            lines += [f"### {says}", "", *table(COLUMNS, rows), ""]
    return "\n".join(lines)


def write(document: Path, text: str) -> None:
    replace_between(document, BEGIN, END, text)


def replace_between(document: Path, begin: str, end: str, text: str) -> None:
    """Replace what is between two marks."""
    before, _, rest = document.read_text().partition(begin)
    document.write_text(f"{before}{begin}\n{text}{end}{rest.partition(end)[2]}")


def _rows(every: Iterable[Found], name: str, names: dict[str, str]) -> Iterator[tuple[str, ...]]:
    """A row for each file."""
    for found in sorted(every, key=lambda one: (names.get(one.file, ""), one.file)):
        places = [place for place in found.places if kind(place) == name]
        if places:
            first = places[0]
            more = [f"and {len(places) - SHOWN:,} more"] * (len(places) > SHOWN)
            yield (
                f"`{Path(found.file).name}`", names[found.file], f"{len(places):,}", f"{sum(place.size for place in places):,}",
                ", ".join([*map(_which, places[:SHOWN]), *more]), _short(first.claim), _short(first.proof),
            )  # fmt: skip


def _which(place: Place) -> str:
    name, _, offset = place.name.rpartition("+")
    shown = f" {name}+{offset}" if name and not name.startswith(".") and len(name) <= NAMED else ""
    return f"{place.address:#x}{shown} ({place.size})"


def _short(equation: str) -> str:
    return "`" + equation.removeprefix("(cfa, ra, fp) = ") + "`"


def packages(files: Iterable[str]) -> dict[str, str]:
    """Which package of the distribution each is of, as far as dpkg knows; of others the folder."""
    found = {}
    for file in files:
        parts = Path(file).parts
        found[file] = f"the corpus' {parts[parts.index('corpus') + 1]}" if "corpus" in parts else Path(file).parent.name
        for path in (file, file.removeprefix("/usr")):
            done = subprocess.run(["dpkg", "-S", path], capture_output=True, text=True, check=False)
            if done.returncode == 0:
                found[file] = done.stdout.partition(": ")[0].partition(":")[0]
                break
    return found
