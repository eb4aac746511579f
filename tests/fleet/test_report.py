"""The report of a run: figures that equal a recount, one page without a network, and names that stay data."""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import io
import json
import os
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from cfi.errors import FormatError
from sframegen.cli.fleet import command
from sframegen.fleet.report.page_tables import FileTable
from sframegen.fleet.result_rows import FileRow, Outcome, PackageRow
from tests.fleet.stored_run import report_of, write_run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.once, pytest.mark.full]

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "--><!--<script>",
    "a\u2028b\u202e",
    "a\nb",
    "${7*7}'\"@STYLE@",
]


class Page(HTMLParser):
    """Elements with their attributes, and the text of scripts and styles."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, tuple[tuple[str, str | None], ...]]] = []
        self.inside = ""
        self.texts: dict[str, str] = {}
        self.feed(path.read_text())
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(attrs)))
        self.inside = (dict(attrs).get("id") or tag) if tag in ("script", "style") else ""

    def handle_endtag(self, _tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.texts[self.inside] = self.texts.get(self.inside, "") + data

    @property
    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.texts["summary"])
        return found

    def unpacked(self, name: str) -> str:
        return gzip.decompress(base64.b64decode(self.texts[name])).decode()

    def table(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.unpacked(name))
        return found


def package(number: int, **more: Any) -> PackageRow:
    row: dict[str, Any] = {
        "package": f"lib{number}_1.0_amd64.deb",
        "source": f"file:lib{number}",
        "sha256": f"{number:064x}",
        "kind": "deb",
        "outcome": Outcome.ADDED,
        "package_bytes": 1000 * (number + 1),
        "new_package_bytes": 1030 * (number + 1),
        "unpacked_bytes": 4000,
        "entries": 9,
        "elf_files": 2,
        "seconds_reading": 0.5,
        "seconds_converting": 0.25,
    }
    return PackageRow(**row | more)


def file(number: int, name: str, **more: Any) -> FileRow:
    """A file of package `number`."""
    row: dict[str, Any] = {
        "package": f"lib{number}_1.0_amd64.deb",
        "package_sha256": f"{number:064x}",
        "path": f"usr/lib/{name}",
        "outcome": Outcome.ADDED,
        "machine": "x86-64",
        "elf_type": "DYN",
        "producer": "GCC",
        "producer_version": "14.2.0",
        "language": "C",
        "file_bytes": 50_000,
        "new_file_bytes": 54_096,
        "executable_bytes": 11_000,
        "code_bytes": 10_000,
        "covered_bytes": 10_000,
        "functions": 40,
        "functions_covered": 40,
        "rows": 160,
        "section_bytes": 700,
        "stored_bytes": 700,
        "eh_frame_bytes": 800,
        "eh_frame_hdr_bytes": 200,
        "no_cfi": {"padding": 900, "code": 100},
        "seconds": 0.01,
    }
    return FileRow(**row | more)


RUN = (
    [package(0), package(1), package(2, outcome=Outcome.FAILED, reason="took longer than 600 s", new_package_bytes=0)],
    [
        file(0, "a.so"),
        file(0, "b.so", covered_bytes=9_990, functions_covered=39, left_out={"a CFA by an expression": 10}, section_bytes=1200),
        file(1, "c.so", language="Rust", producer="rustc", producer_version="1.85.0", code_bytes=30_001, covered_bytes=30_001),
        file(1, "d.so", outcome=Outcome.UNCHANGED, eh_frame_bytes=0, eh_frame_hdr_bytes=0),
        file(1, "old.so", outcome=Outcome.REFUSED, reason="a 32-bit ELF file", section_bytes=0, new_file_bytes=0),
        file(1, "none.so", outcome=Outcome.NOTHING, code_bytes=0, covered_bytes=0, section_bytes=0, new_file_bytes=0),
    ],
)


def made(out: Path, packages: list[PackageRow], files: list[FileRow]) -> Page:
    write_run(out, packages, files)
    return Page(report_of(out))


def test_sums_equal_a_recount(tmp_path: Path) -> None:
    packages, files = RUN
    page = made(tmp_path, packages, files)
    added = [row for row in files if row.outcome in ("added", "unchanged")]
    said = page.summary["files"]
    assert said["outcomes"] == {"added": 3, "unchanged": 1, "refused": 1, "nothing to add": 1}
    assert (said["seen"], said["files"]) == (6, 4)
    assert said["code"] == sum(row.code_bytes for row in added)
    assert said["covered"] == sum(row.covered_bytes for row in added)
    assert said["section"] == sum(row.section_bytes for row in added)
    assert said["ehFrame"] == sum(row.eh_frame_bytes + row.eh_frame_hdr_bytes for row in added) == 3000
    assert said["ratios"] == [0.7, 0.7, 1.2]
    assert page.summary["packages"]["outcomes"] == {"added": 2, "failed": 1}
    assert page.summary["packages"]["rewritten"] == [2, 3000, 3090]
    assert page.summary["packages"]["steps"] == {"fetching": 0, "reading": 1.5, "converting": 0.75, "writing": 0}
    assert [(row["least"], row["files"], row["leftOut"]) for row in page.summary["coverage"] if row["files"]] == [
        (100, 3, 0),
        (99.9, 1, 10),
    ]
    assert page.summary["leftOut"] == {"a CFA by an expression": 10}
    assert page.summary["noCfi"] == {"padding": 5400, "code": 600}
    languages = {row["name"]: (row["files"], row["code"]) for row in page.summary["groups"]["language"]}
    assert languages == {"C": (3, 30_000), "Rust": (1, 30_001)}
    assert {row["name"] for row in page.summary["groups"]["compiler"]} == {"GCC 14", "rustc 1"}


def test_reasons_come_with_examples_that_lead_to_their_details(tmp_path: Path) -> None:
    packages, files = RUN
    many = [file(1, f"x{number}", outcome=Outcome.REFUSED, reason=f"no room at {0x1000 + number:#x}") for number in range(9)]
    page = made(tmp_path, packages, [*files, *many])
    reasons = {(row["of"], row["outcome"], row["reason"]): row for row in page.summary["reasons"]}
    assert set(reasons) == {
        ("package", "failed", "took longer than … s"),
        ("file", "refused", "a 32-bit ELF file"),
        ("file", "refused", "no room at …"),
        ("file", "nothing to add", ""),
    }
    assert reasons["file", "refused", "no room at …"]["number"] == 9
    [[number, name]] = reasons["file", "refused", "a 32-bit ELF file"]["examples"]
    table = page.table("file-rows")
    place = table["number"].index(number)
    assert name == f"lib1_1.0_amd64.deb: {table['path'][place]}"
    assert table["texts"][table["reason"][place]] == "a 32-bit ELF file"


def test_rows_of_the_page_are_those_of_the_run(tmp_path: Path) -> None:
    packages, files = RUN
    page = made(tmp_path, packages, files)
    table = page.table("file-rows")
    assert table["path"] == [row.path for row in files]
    assert table["package"] == [0, 0, 1, 1, 1, 1]
    assert [table["texts"][number] for number in table["language"]] == [row.language for row in files]
    assert table["leftOut"][1] == [table["texts"].index("a CFA by an expression"), 10]
    table = page.table("package-rows")
    assert table["name"] == [row.package for row in packages]
    assert table["code"] == [20_000, 40_001, 0]
    assert table["withSection"] == [2, 2, 0]
    for name, rows in (("packages.csv", packages), ("files.csv", files)):
        lines = list(csv.DictReader(io.StringIO((tmp_path / name).read_text())))
        assert [line["package"] for line in lines] == [row.package for row in rows]
    assert lines[1]["no_cfi"] == "padding: 900; code: 100"
    assert int(lines[2]["code_bytes"]) == 30_001


def test_hostile_names_are_neither_markup_nor_script_nor_formulas(tmp_path: Path) -> None:
    plain = made(tmp_path / "plain", *RUN)
    names = [*HOSTILE, "=1+1", "@SUM(A1)", "x" * 5000]
    packages = [
        package(n, package=name, kind=name, reason=name, warnings=[name], outcome=Outcome.REFUSED) for n, name in enumerate(names)
    ]
    files = [
        file(
            n,
            name,
            package=name,
            language=name,
            producer=name,
            machine=name,
            reason=name,
            outcome=outcome,
            left_out={name: 5},
            no_cfi={name: 5},
            warnings=[name],
        )
        for n, name in enumerate(names)
        for outcome in (Outcome.ADDED, Outcome.REFUSED)
    ]
    page = made(tmp_path / "hostile", packages, files)
    assert page.elements == plain.elements
    assert {name: page.texts[name] for name in ("style", "script")} == {name: plain.texts[name] for name in ("style", "script")}
    assert page.table("package-rows")["name"][:3] == HOSTILE[:3]
    assert "\n" not in "".join(page.table("package-rows")["texts"])
    assert "\u202e" not in "".join(page.table("file-rows")["path"])
    assert max(map(len, page.table("package-rows")["name"])) < 1000
    lines = list(csv.reader(io.StringIO((tmp_path / "hostile" / "packages.csv").read_text())))
    assert len(lines) == 1 + len(names)
    assert [line[0] for line in lines[-3:-1]] == ["'=1+1", "'@SUM(A1)"]


def test_nothing_is_loaded_and_only_the_page_itself_may_run(tmp_path: Path) -> None:
    page = made(tmp_path, *RUN)
    attributes = [dict(attrs) for _, attrs in page.elements]
    assert not [attrs for attrs in attributes if "src" in attrs or (attrs.get("href") or "#")[0] != "#"]
    [policy] = [attrs["content"] or "" for attrs in attributes if attrs.get("http-equiv") == "Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    texts = [page.texts["script"], page.unpacked("vega"), page.texts["style"]]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
    assert re.findall(r"sha256-([^']+)'", policy) == hashes


@pytest.mark.parametrize(
    "packages",
    [[], [package(0, outcome=Outcome.FAILED, reason="HTTP 404", package_bytes=0, new_package_bytes=0, kind="", sha256="")]],
)
def test_a_run_without_files(tmp_path: Path, packages: list[PackageRow]) -> None:
    page = made(tmp_path, packages, [])
    assert (page.summary["files"]["files"], page.summary["charts"]) == (0, {})
    assert sum(page.summary["packages"]["outcomes"].values()) == len(packages)
    assert page.table("package-rows")["name"] == [row.package for row in packages]
    assert page.table("file-rows")["path"] == []


def test_a_page_has_the_files_with_the_most_code_if_they_are_too_many() -> None:
    table = FileTable(limit=3)
    for number, code in enumerate((5, 50, 7, 500, 7)):
        table.add(number, 0, file(0, str(number), code_bytes=code))
    assert table.columns()["number"] == [1, 2, 3]


@pytest.mark.parametrize("damaged", ["packages.parquet", "files.parquet", "run.json"])
@pytest.mark.parametrize("content", [b"", b"PAR1 nothing of the kind PAR1", b"[1]"])
def test_damaged_results_are_one_line(tmp_path: Path, damaged: str, content: bytes) -> None:
    write_run(tmp_path, *RUN)
    (tmp_path / damaged).write_bytes(content)
    with pytest.raises(FormatError) as caught:
        report_of(tmp_path)
    assert "\n" not in str(caught.value)
    assert damaged in str(caught.value)
    assert not (tmp_path / "report.html").exists()


def test_a_description_of_the_run_that_nobody_can_read(tmp_path: Path) -> None:
    write_run(tmp_path, *RUN)
    path = tmp_path / "run.json"
    path.write_text("[" * 200_000)
    with pytest.raises(FormatError, match=r"run\.json: not JSON"):
        report_of(tmp_path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(FormatError, match=r"run\.json: not a regular file"):
        report_of(tmp_path)


def test_another_version_of_the_table_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path, *RUN)
    (tmp_path / "packages.parquet").replace(tmp_path / "files.parquet")
    write_run(tmp_path / "more", *RUN)
    (tmp_path / "more" / "packages.parquet").replace(tmp_path / "packages.parquet")
    with pytest.raises(FormatError, match=r"no columns .*build_id"):
        report_of(tmp_path)


def test_the_command(tmp_path: Path) -> None:
    write_run(tmp_path, *RUN)
    runner = CliRunner()
    done = runner.invoke(command, ["report", str(tmp_path), "-o", str(tmp_path / "page.html")])
    assert (done.exit_code, done.stdout) == (0, f"{tmp_path}/page.html\n")
    assert {path.name for path in tmp_path.glob("*.[hc]*")} == {"page.html", "files.csv", "packages.csv"}
    (tmp_path / "files.parquet").unlink()
    failed = runner.invoke(command, ["report", str(tmp_path)])
    assert (failed.exit_code, failed.stdout) == (1, "")
    assert failed.stderr == f"sframegen: {tmp_path}/files.parquet: No such file or directory\n"
