"""check reads packages: each program and library that has a section, its findings, and what cannot be checked."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from sframegen import FormatError, Severity
from sframegen.checks.finding import Finding
from sframegen.packages import package_api
from sframegen.packages.package_api import check_package
from tests.packages.package_makers import NAME, deb_of, tar, wheel, with_sections
from tests.support.commands import run as invoke
from tests.support.peers import Compiler, Peers

MAKERS: dict[str, Callable[[Path, Mapping[str, bytes]], Path]] = {
    "deb": lambda folder, files: deb_of(folder / "x.deb", files),
    "wheel": lambda folder, files: wheel(folder / NAME, files),
    "tar": lambda folder, files: _written(folder / "x.tar", tar([*files.items()])),
}


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.fixture
def files(compile_c: Compiler, tmp_path: Path) -> dict[str, bytes]:
    library = compile_c("int f(int x) { return x + 1; }\n", "-shared", "-O1")
    return {f"x/{name}.so": data for name, data in with_sections(library, tmp_path).items()} | {"x/text": b"text"}


@pytest.mark.parametrize("kind", MAKERS)
def test_each_file_that_has_a_section_is_checked(kind: str, files: dict[str, bytes], tmp_path: Path) -> None:
    package = MAKERS[kind](tmp_path, files)
    report = check_package(package)
    assert report.package is not None
    assert (report.file, report.package.kind, report.worst()) == (str(package), kind, Severity.ERROR)
    assert (report.package.elf_files, report.package.without_section, report.findings) == (4, 1, ())
    assert {part.file: part.worst() for part in report.package.files} == {"x/good.so": Severity.NOTE, "x/wrong.so": Severity.ERROR}
    [refused] = report.package.refused
    assert refused.startswith("x/cut.so: ")
    assert report.functions == next(part.functions for part in report.package.files if part.file == "x/good.so") > 0


def test_lines_name_package_and_file(files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    deb_of(tmp_path / "x.deb", files)
    deb_of(tmp_path / "good.deb", {"x/good.so": files["x/good.so"]})
    done = invoke("check", "x.deb", "good.deb")
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert lines[0].endswith(" errors, 1 refused: deb, 4 ELF files, 2 checked, 1 without a section")
    good, bad = (line.partition(": SFrame")[0] for line in lines if line.startswith("x.deb: x/"))
    assert good == "x.deb: x/good.so: OK"
    assert bad.startswith("x.deb: x/wrong.so: ")
    assert bad.endswith(" errors")
    assert "good.deb: OK: deb, 1 ELF file, 1 checked" in lines
    assert [line.split(": ")[:3] for line in done.stderr.splitlines()] == [["sframegen", "x.deb", "x/cut.so"]]
    done = invoke("check", "--quiet", "good.deb")
    assert (done.exit_code, done.output) == (0, "")
    done = invoke("check", "--json", "x.deb")
    [report] = json.loads(done.stdout)
    assert done.exit_code == 1
    assert [part["file"] for part in report["package"]["files"]] == ["x/good.so", "x/wrong.so"]
    assert report["package"]["files"][1]["findings"][0]["severity"] == "error"


def test_a_finding_does_not_name_the_copy_that_was_read(files: dict[str, bytes], tmp_path: Path) -> None:
    package = MAKERS["tar"](tmp_path, {"x/good.so": files["x/good.so"]})
    for instructions in (False, True):
        report = check_package(package, debug_file=tmp_path / "none", instructions=instructions)
        assert report.package is not None
        [part] = report.package.files
        assert part.findings[0].message == f"nothing to compare it with: {tmp_path / 'none'}: no such file"


def test_that_nothing_has_a_section_is_an_error(files: dict[str, bytes], tmp_path: Path) -> None:
    without = MAKERS["tar"](tmp_path, {"x/without.so": files["x/without.so"]})
    assert [finding.rule for finding in check_package(without).findings] == ["no-sframe"]
    assert check_package(without, instructions=True).worst() is not Severity.ERROR
    text = MAKERS["deb"](tmp_path, {"x/text": b"text"})
    assert check_package(text).worst() is None
    assert check_package(text).one_line() == f"{text}: nothing to check: deb, 0 ELF files, 0 checked"
    with pytest.raises(FormatError):
        check_package(_written(tmp_path / "cut.deb", text.read_bytes()[: text.stat().st_size // 2]))


def test_debug_files_have_no_section(files: dict[str, bytes], tmp_path: Path, peers: Peers) -> None:
    library = _written(tmp_path / "library", files["x/without.so"])
    subprocess.run([peers.tool("objcopy"), "--only-keep-debug", library, tmp_path / "debug"], check=True)
    report = check_package(MAKERS["tar"](tmp_path, {"x.debug": (tmp_path / "debug").read_bytes()}))
    assert report.package is not None
    assert (report.worst(), report.package.elf_files, report.package.without_section) == (None, 1, 0)


def test_strict(files: dict[str, bytes], tmp_path: Path) -> None:
    report = check_package(MAKERS["tar"](tmp_path, {"x/good.so": files["x/good.so"]}))
    assert report.package is not None
    [part] = report.package.files
    warned = replace(part, findings=(Finding("x", Severity.WARNING, "x"),))
    report = replace(report, package=replace(report.package, files=(warned,)))
    assert (report.worst(), report.strict().worst()) == (Severity.WARNING, Severity.ERROR)


def test_the_findings_of_a_package_are_bounded(files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_api, "MAX_FINDINGS", 0)
    report = check_package(MAKERS["tar"](tmp_path, {"a": files["x/wrong.so"], "b": files["x/good.so"]}))
    assert report.package is not None
    assert [part.file for part in report.package.files] == ["a"]
    assert report.package.refused == ("b: not checked: the files before it in the package have more than 0 findings",)
