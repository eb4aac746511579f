"""Pages of docs/reports name the sframegen that their figures are of. Older ones give a line at the end, no failure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from corpus.report_pages import MEASURED_WITH, linux, measured_with, write_page
from sframegen import __version__
from tests import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.once

REPORTS = ROOT / "docs/reports"
PAGES = sorted(path.name for path in REPORTS.glob("*.md"))


def minor(version: str) -> list[int]:
    return [int(number) for number in version.split(".")[:2]]


def oldest(text: str) -> str:
    """The version of a page's oldest part."""
    versions: list[str] = MEASURED_WITH.findall(text)
    return min(versions, key=minor)


@pytest.mark.parametrize("page", PAGES)
def test_a_report_names_the_version_that_wrote_it(page: str, record_property: Callable[[str, object], None]) -> None:
    """conftest.py prints what is recorded as `old report`."""
    text = (REPORTS / page).read_text()
    assert MEASURED_WITH.findall(text), f"no line {measured_with()}. in {page}"
    assert minor(oldest(text)) <= minor(__version__)
    if minor(oldest(text)) < minor(__version__):
        record_property("old report", f"{page} ({oldest(text)})")


def test_the_oldest_part_counts() -> None:
    assert oldest("Measured with sframegen 0.10.1.\n\nMeasured with sframegen 0.9.0, Python 3.11.7.\n") == "0.9.0"


def test_what_writes_a_page_names_its_version(tmp_path: Path) -> None:
    write_page(tmp_path / "page.md", "# A title\n\nText.\n")
    assert (tmp_path / "page.md").read_text() == f"# A title\n\nMeasured with sframegen {__version__}.\n\nText.\n"
    write_page(tmp_path / "page.md", "# A title\n\nText.\n", "0.0.1")
    assert oldest((tmp_path / "page.md").read_text()) == "0.0.1"


def test_a_page_names_the_kernel_without_its_maker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.release", lambda: "6.18.44-maker-7")
    assert linux() == "Linux 6.18.44"


README = (ROOT / "README.md").read_text()
WHY = README.partition("\n## Why\n")[2].partition("\n## ")[0]
# Columns of README's table, and of the report.
PROFILERS = {
    "sframegen": "sframegen",
    "perf, frame pointers": "perf fp",
    "perf, DWARF, 64 KB": "perf dwarf, 64 KB",
    "samply": "samply",
    "bpftrace, DWARF": "bpftrace dw_ustack",
}


def tables_of(page: str) -> dict[str, dict[tuple[str, str], str]]:
    """Each table by its first heading: cells by row and column."""
    tables = {}
    for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
        tables[head[0]] = {(row[0], column): cell for row in rows for column, cell in zip(head[1:], row[1:], strict=True)}
    return tables


def test_readme_says_why_with_figures_of_the_reports() -> None:
    report = tables_of((REPORTS / "profilers.md").read_text())
    [shown] = tables_of(WHY).values()
    whole, fast = report["stacks that reach the outermost frame"], report["999 Hz"]
    expected = {}
    for what, profiler in shown:
        subject, _, aspect = what.partition(": ")
        column = PROFILERS[profiler]
        cell = whole[subject, column] if aspect == "whole stacks" else fast[column, what.removesuffix(", 999 Hz")]
        expected[what, profiler] = cell
    assert shown == expected
    assert {profiler for _, profiler in shown} == set(PROFILERS)


def test_readme_compares_traces_with_figures_of_the_report() -> None:
    nanoseconds = (REPORTS / "own-stack.md").read_text().partition("\n## Nanoseconds for each frame\n")[2].partition("\n## ")[0]
    [report] = tables_of(nanoseconds).values()
    frames, ours, theirs = re.findall(
        r"a trace of (\d+) frames\s+takes ([\d.]+) ns for each frame, and ([\d.]+) ns with\s+glibc's `backtrace\(\)`", WHY
    )[0]
    assert (ours, theirs) == tuple(report[name, f"{frames} frames"] for name in ("sframe_backtrace", "backtrace"))


def test_readme_names_the_versions_of_its_figures() -> None:
    said = re.findall(r"measured with sframegen ([\d.]+\d)\b.*?\((docs/reports/[\w-]+\.md)\)", WHY, re.DOTALL)
    assert len(said) == 2
    assert {page: version for version, page in said} == {page: oldest((ROOT / page).read_text()) for _, page in said}


PROMISED = {
    "stacks.md": (r"([\d,]+) frames of stopped programs", "{} equal PCs"),
    "corpus.md": (r"gave back all ([\d,]+) files", "byte for byte | {} |"),
}


@pytest.mark.parametrize("page", PROMISED)
def test_what_readme_promises_has_the_figures_of_the_reports(page: str) -> None:
    said, written = PROMISED[page]
    [figure] = re.findall(said, README)
    assert written.format(figure) in (REPORTS / page).read_text()


def test_readme_is_read_in_a_minute() -> None:
    assert len(README.splitlines()) <= 120
