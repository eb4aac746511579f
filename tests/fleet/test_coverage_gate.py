"""`fleet run --mode check`: rows of what is wrong with the sections in packages; the gate over them and over added sections."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import pytest

from sframegen.api.add_summary import SUMMED_FIELDS, Summary
from sframegen.fleet.collecting import FILE_SUMS, PACKAGE_SUMS, ParquetTable
from sframegen.fleet.fleet_run import MAX_REPORTED_FILES, CoverageDemand, CoverageGate, is_excluded
from sframegen.fleet.output_directory import OutputDirectory
from sframegen.fleet.package_work import work_on
from sframegen.fleet.result_rows import SCHEMA_KEY, FileRow, PackageResult, PackageRow, RowOutcome
from sframegen.fleet.run_options import Mode, RunOptions
from sframegen.fleet.sources.items import Item
from tests import ROOT
from tests.fleet.runs import write_tar
from tests.packages.package_makers import with_sections
from tests.support.commands import run as invoke
from tests.support.loops import for_each
from tests.support.peers import Compiler


def row(path: str = "p", covered: int = 90, **others: object) -> FileRow:
    values = {"outcome": RowOutcome.ADDED, "machine": "x86-64", "executable_bytes": 100, "code_bytes": 100, "section_bytes": 1}
    return FileRow(**{"package": "a.deb", "package_sha256": "", "path": path, "covered_bytes": covered, **values, **others})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "patterns", "is_out"),
    [
        ("pool/main/x-dbg_1.deb", ["*-dbg_*"], True),
        ("pool/main/x_1.deb", ["*-dbg_*"], False),
        ("pool/main/x_1.deb", ["main*"], False),
        ("pool/main/x_1.deb", ["y", "pool/*"], True),
        ("X", ["x"], False),
    ],
)
def test_patterns_of_names(name: str, patterns: list[str], is_out: bool) -> None:
    assert is_excluded(name, patterns) is is_out


@pytest.mark.parametrize(
    ("demand", "given", "why"),
    [
        (CoverageDemand(minimum=90), row(), ""),
        (CoverageDemand(minimum=90.1), row(), "coverage: 90.0000 % is below 90.1 %"),
        (CoverageDemand(minimum=100), row(covered=100), ""),
        (CoverageDemand(), row(outcome=RowOutcome.REFUSED, reason="x"), ""),
        (CoverageDemand(strict=True), row(outcome=RowOutcome.REFUSED, reason="x"), "x"),
        (CoverageDemand(strict=True), row(section_bytes=0, reason="x"), ""),
        (CoverageDemand(minimum=1), row(outcome=RowOutcome.NOTHING, code_bytes=0, covered=0), "coverage: 0.0000 % is below 1 %"),
        (CoverageDemand(minimum=1), row(outcome=RowOutcome.NOTHING, code_bytes=0, covered=0, executable_bytes=0), ""),
        (CoverageDemand(minimum=1), row(outcome=RowOutcome.REFUSED, code_bytes=0, covered=0, reason="x"), "x"),
    ],
)
def test_who_falls_short(demand: CoverageDemand, given: FileRow, why: str) -> None:
    assert demand.explain_shortfall(given) == why


def test_many_files_that_fall_short_are_a_number() -> None:
    findings: list[str] = []
    rows = [*(row(f"p{number}") for number in range(MAX_REPORTED_FILES + 5)), row(covered=100)]
    result = PackageResult(PackageRow("a.deb", "a.deb"), rows)
    gate = CoverageGate(CoverageDemand(minimum=95), findings.append)
    gate.add(result)
    gate.finish("out")
    assert findings[0] == "a.deb: p0: coverage: 90.0000 % is below 95 %"
    assert findings[MAX_REPORTED_FILES:] == ["5 more files fall short: compare the columns of out/files.parquet"]
    gate = CoverageGate(CoverageDemand(), findings.append)
    gate.add(result)
    gate.finish("out")
    assert len(findings) == MAX_REPORTED_FILES + 1


@pytest.mark.full
def test_options_of_the_command(tmp_path: Path, compile_c: Compiler) -> None:
    pytest.importorskip("pyarrow")
    without_cfi = ("-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-nostdlib", "-static", "-Wl,-e,main")
    program = compile_c("int f(void) { return 1; } int main(void) { return f(); }", *without_cfi).read_bytes()
    for name in ("a", "b-dbg"):
        write_tar(tmp_path / f"pool/{name}.tar", {"bin/p": program})
    command = ["fleet", "run", str(tmp_path / "pool"), "-o", str(tmp_path / "out"), "-j", "1", "--exclude", "*-dbg*"]
    assert invoke(*command, "--sframe-version", "2").exit_code == 0
    run = json.loads((tmp_path / "out/run.json").read_text())
    assert (run["packages"], run["packages_excluded"], run["options"]["version"]) == (1, 1, 2)
    done = invoke(*command, "--min-coverage", "100", "--optimize", "none")
    assert done.exit_code == 1
    assert "a.tar: bin/p: coverage: 0.0000 % is below 100 %" in done.output
    assert invoke(*command, "--strict").exit_code == 0


@pytest.fixture
def files(program: bytes, tmp_path: Path) -> dict[str, bytes]:
    (tmp_path / "program").write_bytes(program)
    return with_sections(tmp_path / "program", tmp_path)


def checked(tmp_path: Path, files: Mapping[str, bytes], options: RunOptions | None = None) -> PackageResult:
    path = write_tar(tmp_path / "x.tar", files)
    with OutputDirectory.opened(str(tmp_path / "out"), make=True) as output:
        return output.read_result(work_on(Item("x.tar", str(path)), options or RunOptions(Mode.CHECK), output).key)


def test_each_file_has_an_outcome(files: dict[str, bytes], tmp_path: Path) -> None:
    result = checked(tmp_path, files)
    assert result.package.outcome is RowOutcome.WRONG
    rows = {row.path: row for row in result.files}
    outcomes = {"good": RowOutcome.GOOD, "wrong": RowOutcome.WRONG, "without": RowOutcome.NO_SECTION, "cut": RowOutcome.REFUSED}
    assert {path: row.outcome for path, row in rows.items()} == outcomes
    assert rows["good"].covered_bytes == rows["good"].code_bytes > 0
    assert rows["wrong"].findings[0].startswith("error: ")
    assert rows["wrong"].reason == rows["wrong"].findings[0]
    assert (rows["good"].findings, rows["without"].reason) == ([], "no SFrame section")
    assert checked(tmp_path, {"good": files["good"]}).package.outcome is RowOutcome.GOOD
    assert checked(tmp_path, {"without": files["without"]}).package.outcome is RowOutcome.NO_SECTION


def test_what_falls_short(files: dict[str, bytes], tmp_path: Path) -> None:
    rows = checked(tmp_path, files).files

    def short(demand: CoverageDemand) -> list[str]:
        return [row.path for row in rows if demand.explain_shortfall(row)]

    assert short(CoverageDemand(is_check=True)) == ["wrong", "cut"]
    assert short(CoverageDemand(is_check=True, strict=True)) == ["without", "wrong", "cut"]
    assert short(CoverageDemand(is_check=True, minimum=90)) == ["without", "wrong", "cut"]
    warned = FileRow("x", "", "x", RowOutcome.GOOD, section_bytes=1, findings=["warning: x: y"])
    assert CoverageDemand(is_check=True).explain_shortfall(warned) == ""
    assert CoverageDemand(is_check=True, strict=True).explain_shortfall(warned) == "warning: x: y"


@for_each("option", [("--sframe-version", "2"), ("--synthesize",)])
def test_options_of_other_modes(option: tuple[str, ...], tmp_path: Path) -> None:
    done = invoke("fleet", "run", tmp_path, "-o", tmp_path / "out", "--mode", "check", *option)
    assert (done.exit_code, done.output.splitlines()[-1]) == (2, f"Error: {option[0]} has no effect with --mode check")


# -- columns of the tables are those of the document; a new number is summed, or stands here among those that are not

KINDS: dict[str, type[FileRow | PackageRow]] = {"files": FileRow, "packages": PackageRow}
SUMS = [
    (Summary, SUMMED_FIELDS, ()),
    (PackageRow, PACKAGE_SUMS, ("peak_memory_bytes",)),
    (FileRow, FILE_SUMS, ("seconds",)),  # which are in their package's
]


@pytest.mark.full
def test_the_document_has_the_columns() -> None:
    """A column that goes or has another type needs another SCHEMA_VERSION."""
    pytest.importorskip("pyarrow")
    text = (ROOT / "docs/fleet.md").read_text().partition("\n## Columns\n")[2].partition("\n## ")[0]
    for name, part in zip(KINDS, text.split(".parquet`:\n")[1:], strict=True):
        with ParquetTable(KINDS[name], io.BytesIO()) as table:
            assert table.schema.metadata[SCHEMA_KEY.encode()] == b"1"
            types = {field.name: re.sub(r"<\w+: ", "<", str(field.type)) for field in table.schema}  # as of any pyarrow
        lines = re.findall(r"^- (.*?)(?:, bytes)?: (.*(?:\n  .*)*)", part, re.MULTILINE)
        assert {name: kind for kind, names in lines for name in re.findall(r"`(\w+)`", names)} == types


@for_each(("kind", "sums", "not_summed"), SUMS)
def test_numbers_are_summed(kind: type[Summary | PackageRow | FileRow], sums: tuple[str, ...], not_summed: tuple[str, ...]) -> None:
    assert {one.name for one in fields(kind) if one.type in ("int", "float")} == {*sums, *not_summed}
