"""Results of studies: what corpus/measured.py writes, and what the survey sums."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import sframegen
from corpus import measured


class Place(NamedTuple):
    address: int
    file: Path


@dataclass
class Found:
    places: list[Place]
    reasons: Counter[str] = field(default_factory=Counter)
    names: set[str] = field(default_factory=set)


def test_records_become_json_with_a_line_each(tmp_path: Path) -> None:
    found = Found([Place(1, Path("a"))], Counter(why=2), {"y", "x"})
    expected = {"places": [{"address": 1, "file": "a"}], "reasons": {"why": 2}, "names": ["x", "y"]}
    measured.write(tmp_path / "json", {"every": [found, found], "one": found, "none": [], "words": ["a"]})
    lines = (tmp_path / "json").read_text().splitlines()
    results = json.loads("\n".join(lines))
    assert results["sframegen"] == sframegen.__version__
    assert [results[key] for key in ("every", "one", "none", "words")] == [[expected, expected], expected, [], ["a"]]
    assert lines.count(f" {json.dumps(expected)}") == 1  # and the one with a comma after it


def test_sums_of_a_survey() -> None:
    pytest.importorskip("pyarrow")
    survey_report = pytest.importorskip("corpus.survey.survey_report")
    from corpus.survey.survey_packages import Fetched, FetchedGroup  # noqa: PLC0415
    from sframegen.fleet.result_rows import FileRow, PackageRow, RowOutcome  # noqa: PLC0415

    groups = [
        FetchedGroup([Fetched("C", "one", "1", Path("one_1.deb")), Fetched("Go", "two", "2", Path("two_2.deb"))], ["C: gone"])
    ]
    packages = [PackageRow(name, name, kind="deb", package_bytes=10**9, seconds_reading=3.0) for name in ("one_1.deb", "two_2.deb")]
    sizes: dict[str, Any] = {"eh_frame_bytes": 90, "eh_frame_hdr_bytes": 10, "executable_bytes": 9000}
    covered: dict[str, Any] = {"code_bytes": 4000, "covered_bytes": 4000, "section_bytes": 50}
    partly: dict[str, Any] = {"code_bytes": 4000, "covered_bytes": 3000, "section_bytes": 150}
    files = [
        FileRow("one_1.deb", "", "lib/a", RowOutcome.ADDED, language="C", machine="x86-64", **sizes, **covered),
        FileRow(
            "one_1.deb", "", "lib/b", RowOutcome.ADDED, language="C", machine="x86-64", left_out={"why": 1000}, **sizes, **partly
        ),
        FileRow("two_2.deb", "", "bin/c", RowOutcome.REFUSED, reason="no room at 0x1234", language="Go", no_cfi={"code": 2000}),
        FileRow("two_2.deb", "", "bin/d", RowOutcome.REFUSED, reason="no room at 0x5678", language="Go", no_cfi={"code": 6000}),
    ]
    found = survey_report.summed(groups, packages, files)
    shown = ("elf_files", "with_section", "code_bytes", "covered", "without_cfi", "of_eh_frame", "wholly_covered_files")
    assert [found[key] for key in shown] == [4, 2, 8000, 87.5, 50.0, 1.0, 1]
    assert [(one["group"], one["packages"], one["elf_files"], one["covered"]) for one in found["groups"]] == [
        ("C", 1, 2, 87.5),
        ("Go", 1, 2, None),
    ]
    assert found["incomplete"] == [{"file": "b", "package": "one, x86-64", "code_bytes": 4000, "left_out": 1000}]
    assert [(one["reason"], one["number"], one["such_as"]) for one in found["without_section"]] == [("no room at …", 2, "c")]
    assert [one["file"] for one in found["larger"]] == ["b"]
    assert [(one["packages"], one["unpack_seconds"]) for one in found["time"]] == [(2, 3)]
