"""The page of a run: figures that equal a recount, one file without a network, and names that stay data."""

from __future__ import annotations

import json
import shutil
import subprocess
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from sframegen.cli.commands import cli
from sframegen.fleet.collecting import ParquetTable
from sframegen.fleet.result_rows import FileRow, RowOutcome

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.full

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "--><!--<script>",
    "a\u2028b\u202e",
    "a\nb",
    "${7*7}'\"{style}",
)


@pytest.fixture(autouse=True)
def _extra() -> None:
    pytest.importorskip("altair")
    pytest.importorskip("pyarrow")


class Page(HTMLParser):
    """The elements of a page, and the texts of its scripts."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.scripts: list[str] = []
        self.text = ""
        self.feed(path.read_text())
        self.close()
        data, self.library, self.script = self.scripts
        self.chart: dict[str, Any] = json.loads(data)
        self.plots = {plot["title"]: self.chart["datasets"][plot["data"]["name"]] for plot in self.chart["vconcat"]}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        assert not {"src", "href"} & {name for name, _ in attrs}
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.elements[-1:] == ["script"] and data.strip():
            self.scripts[-1] += data
        else:
            self.text += data


def file(path: str, **more: Any) -> FileRow:
    values: dict[str, Any] = {"language": "C", "producer": "GCC", "producer_version": "12.2.0", "machine": "x86-64"}
    values |= {"code_bytes": 1000, "covered_bytes": 1000, "section_bytes": 300, "eh_frame_bytes": 500, "eh_frame_hdr_bytes": 100}
    return FileRow(**{"package": "a.deb", "package_sha256": "", "path": path, "outcome": RowOutcome.ADDED, **values, **more})


def page_of(directory: Path, files: Sequence[FileRow]) -> Page:
    with (directory / "files.parquet").open("wb") as out, ParquetTable(FileRow, out) as table:
        for row in files:
            table.add(row)
    done = CliRunner().invoke(cli, ["fleet", "report", str(directory)])
    assert (done.exit_code, done.output) == (0, f"{directory}/report.html\n")
    return Page(directory / "report.html")


def test_figures(tmp_path: Path) -> None:
    page = page_of(
        tmp_path,
        [
            file("a"),
            file("b", covered_bytes=995, left_out={"reason": 5}, language="Rust", section_bytes=900),
            file("c", outcome=RowOutcome.NOTHING, reason="no CFI at 0x1000", code_bytes=0, no_cfi={"code": 70}),
            file("d", outcome=RowOutcome.NOTHING, reason="no CFI at 0x2000", package="b.deb"),
            file("e", outcome=RowOutcome.WRONG, reason="error: x", code_bytes=0, covered_bytes=0, language="", producer=""),
        ],
    )
    assert "5 ELF files of 2 packages; 3 with a section. Sections cover 99.7500% of 2,000 bytes of code" in page.text
    plots = {title: {one["name"]: one["value"] for one in values} for title, values in page.plots.items()}
    assert plots["Files by the share of their code that is covered"] == {"all": 1, "99 % or more": 1, "no code with CFI": 1}
    assert plots["Size by language"] == {"C": 0.5, "Rust": 1.5, "unknown": 0.5}
    assert plots["Code with CFI that is left out"] == {"reason": 5}
    assert plots["Code without CFI"] == {"code": 70}
    assert plots["Files without a section, or with a wrong one"] == {"nothing to add: no CFI at …": 2, "wrong: error: x": 1}
    assert plots["The least covered"] == {"a.deb: b": 5}
    assert list(plots["The largest sections"]) == ["a.deb: b", "a.deb: e", "a.deb: a"]


def test_hostile_names_stay_data(tmp_path: Path) -> None:
    plain = page_of(tmp_path, [file(f"name {number}") for number in range(len(HOSTILE))])
    hostile = page_of(tmp_path, [file(name) for name in HOSTILE])
    assert (hostile.elements, hostile.library, hostile.script) == (plain.elements, plain.library, plain.script)
    assert {"a.deb: </script><script>alert(1)</script>", "a.deb: ${7*7}'\"{style}"} <= {
        one["name"] for one in hostile.plots["The largest sections"]
    }
    assert "<" not in hostile.scripts[0]


def test_a_run_without_files(tmp_path: Path) -> None:
    assert "0 ELF files of 0 packages" in page_of(tmp_path, []).text


def test_the_size_does_not_grow_with_the_run(tmp_path: Path) -> None:
    few, many = (page_of(tmp_path, [file(f"n{number % 90}") for number in range(count)]).scripts[0] for count in (90, 9000))
    assert len(many) < len(few) + 200


def test_a_browser_draws_it(tmp_path: Path) -> None:
    """Its policy allows the two scripts, and these need no `eval`."""
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("no chromium")
    page_of(tmp_path, [file("a"), file("b", left_out={"reason": 5})])
    options = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile", "--virtual-time-budget=20000")
    done = subprocess.run(
        [browser, *options, "--dump-dom", (tmp_path / "report.html").as_uri()], capture_output=True, text=True, check=True
    )
    assert "The largest sections" in done.stdout.partition('<div id="plots"')[2].partition("<script")[0]  # of the drawing
