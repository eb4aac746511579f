"""`fleet run --mode check`: rows of what is wrong with the sections in packages, and the gate over them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sframegen.fleet.fleet_run import CoverageDemand
from sframegen.fleet.output_directory import OutputDirectory
from sframegen.fleet.package_work import work_on
from sframegen.fleet.result_rows import FileRow, PackageResult, RowOutcome
from sframegen.fleet.run_options import Mode, RunOptions
from sframegen.fleet.sources.items import Item
from tests.fleet.runs import write_tar
from tests.packages.package_makers import with_sections
from tests.support.commands import run as invoke
from tests.support.loops import for_each

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


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
    outcomes = {"good": RowOutcome.GOOD, "wrong": RowOutcome.WRONG, "without": RowOutcome.WITHOUT, "cut": RowOutcome.REFUSED}
    assert {path: row.outcome for path, row in rows.items()} == outcomes
    assert rows["good"].covered_bytes == rows["good"].code_bytes > 0
    assert rows["wrong"].findings[0].startswith("error: ")
    assert rows["wrong"].reason == rows["wrong"].findings[0]
    assert (rows["good"].findings, rows["without"].reason) == ([], "no SFrame section")
    assert checked(tmp_path, {"good": files["good"]}).package.outcome is RowOutcome.GOOD
    assert checked(tmp_path, {"without": files["without"]}).package.outcome is RowOutcome.WITHOUT


def test_what_falls_short(files: dict[str, bytes], tmp_path: Path) -> None:
    """Errors, and what cannot be checked; with more demands, also files without a section."""
    rows = checked(tmp_path, files).files

    def short(demand: CoverageDemand) -> list[str]:
        return [row.path for row in rows if demand.explain_shortfall(row)]

    assert short(CoverageDemand(checked=True)) == ["wrong", "cut"]
    assert short(CoverageDemand(checked=True, strict=True)) == ["without", "wrong", "cut"]
    assert short(CoverageDemand(checked=True, minimum=90)) == ["without", "wrong", "cut"]
    warned = FileRow("x", "", "x", RowOutcome.GOOD, section_bytes=1, findings=["warning: x: y"])
    assert CoverageDemand(checked=True).explain_shortfall(warned) == ""
    assert CoverageDemand(checked=True, strict=True).explain_shortfall(warned) == "warning: x: y"


@for_each("option", [("--sframe-version", "2"), ("--synthesize",)])
def test_options_of_other_modes(option: tuple[str, ...], tmp_path: Path) -> None:
    done = invoke("fleet", "run", tmp_path, "-o", tmp_path / "out", "--mode", "check", *option)
    assert (done.exit_code, done.output.splitlines()[-1]) == (2, f"Error: {option[0]} has no effect with --mode check")
