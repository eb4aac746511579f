"""corpus/survey, with packages made here in place of Debian's and PyPI's."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from corpus.fetch.__main__ import FetchError
from corpus.survey import survey_packages
from corpus.survey.judged_files import judge, merged, within
from corpus.survey.survey_packages import MANIFEST, Fetched, FetchedGroup, fetched, groups

if TYPE_CHECKING:
    from tests.support.peers import Compiler

pytestmark = [pytest.mark.once, pytest.mark.full]

TAG = "cp313-cp313-manylinux_2_28_x86_64"
LIBRARY = "int twice(int x) { return 2 * x; } int more(int x) { return twice(x) + 1; }"


def make_deb(path: Path, name: str, program: Path) -> Path:
    if shutil.which("dpkg-deb") is None:
        pytest.skip("no dpkg-deb: not a Debian machine")
    tree = path / f"{name}.tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN" / "control").write_text(
        f"Package: {name}\nVersion: 1:2-3\nArchitecture: amd64\nMaintainer: Nobody <nobody@localhost>\nDescription: x\n"
    )
    (tree / "usr" / "bin").mkdir(parents=True)
    shutil.copy(program, tree / "usr" / "bin" / name)
    deb = path / f"{name}_2-3_amd64.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", tree, deb], check=True, stdout=subprocess.DEVNULL)
    return deb


def make_wheel(path: Path, library: Path) -> Path:
    wheel = path / f"twice-1.0-{TAG}.whl"
    content = {
        "twice/_twice.so": library.read_bytes(),
        "twice-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: twice\nVersion: 1.0\n",
        "twice-1.0.dist-info/WHEEL": f"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: false\nTag: {TAG}\n".encode(),
    }
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
        archive.writestr(
            "twice-1.0.dist-info/RECORD", "".join(f"{name},,\n" for name in content) + "twice-1.0.dist-info/RECORD,,\n"
        )
    return wheel


def test_a_survey_of_two_packages(tmp_path: Path, compile_c: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    for needed in ("pyarrow", "altair", "distributed"):
        pytest.importorskip(needed)
    from corpus.survey import __main__ as survey  # noqa: PLC0415 - needs the extra `fleet`, as does the next
    from corpus.survey.survey_rows import files_of  # noqa: PLC0415

    program = Path(shutil.which("true") or "")
    deb = make_deb(tmp_path, "it", program)
    wheel = make_wheel(tmp_path, compile_c(LIBRARY, "-shared", "-fPIC"))
    groups = [
        FetchedGroup([Fetched("Programs", "it", "1:2-3", deb)], ["Programs: lost"]),
        FetchedGroup([Fetched("Wheels", "twice", "1.0", wheel)], []),
    ]
    monkeypatch.setattr(survey, "fetched", lambda _manifest: iter(groups))
    report, page, output = (tmp_path / name for name in ("survey.md", "survey.html", "output"))
    monkeypatch.setattr(sys, "argv", ["survey", "--output", str(output), "--report", str(report), "--page", str(page)])
    assert survey.main() == 0
    text = report.read_text()
    assert "2 packages, " in text
    assert "does not have them: Programs: lost.\n" in text
    assert "\n2 files with " in text
    assert "drawn with a seed: 0 differences." in text
    assert "| Programs (1) | 1 | 1 |" in text
    assert "| deb | 1 |" in text.partition("## Growth of packages")[2]
    assert page.stat().st_size > 100_000

    rows = {Path(row.package).name: row for row in files_of(output / "survey")}
    row = rows[wheel.name]
    assert rows[deb.name].file_bytes == program.stat().st_size
    assert judge(row, wheel, tmp_path).faults == []
    row.code_bytes += 1
    [fault] = judge(row, wheel, tmp_path).faults
    assert fault == f"code with CFI: {row.code_bytes:,}, found are {row.code_bytes - 1:,} bytes"


def test_ranges() -> None:
    assert merged([(5, 9), (1, 3), (2, 4), (9, 10)]) == [(1, 4), (5, 10)]
    assert within([(1, 4), (5, 10)], [(3, 6), (9, 20)]) == [(3, 4), (5, 6), (9, 10)]


def test_the_manifest_names_each_package_once() -> None:
    names = [group.key(package) for group in groups() for package in group.packages]
    assert len(names) == len(set(names))
    assert sum(name.startswith("debian") for name in names) >= 150
    assert sum(name.startswith("wheels-x86_64") for name in names) >= 40
    assert MANIFEST.with_name("head.md").exists()


def test_packages_are_fetched_once_and_again_if_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, list[str]]] = []

    def download(packages: list[str], suite: str, directory: Path) -> list[Path]:
        asked.append((suite, packages))
        directory.mkdir()
        return [make_deb(directory, name, Path(shutil.which("true") or "")) for name in packages]

    monkeypatch.setattr(survey_packages, "download", download)
    monkeypatch.setenv("SFRAMEGEN_CACHE", str(tmp_path / "cache"))
    manifest = tmp_path / "survey.toml"
    manifest.write_text('[[debian]]\nabout = "X"\nsuite = "sid"\narchitecture = "arm64"\npackages = ["one", "two"]\n')
    [([one, two], [])] = fetched(manifest)
    assert (one.group, one.name, one.version) == ("X", "one", "1:2-3")
    lock = json.loads((tmp_path / "cache" / "survey" / "lock.json").read_text())
    assert lock["debian-sid-arm64/two"]["sha256"] == sha256(two.file.read_bytes()).hexdigest()
    list(fetched(manifest))
    assert asked == [("sid:arm64", ["one", "two"])]
    two.file.write_bytes(b"damaged")
    [([_, again], [])] = fetched(manifest)
    assert asked[1:] == [("sid:arm64", ["two"])]
    assert again.file.read_bytes() != b"damaged"

    def lists_only(packages: list[str], suite: str, directory: Path) -> list[Path]:
        if "two" in packages:
            raise subprocess.CalledProcessError(100, "apt-get")
        return download(packages, suite, directory)

    monkeypatch.setattr(survey_packages, "download", lists_only)
    two.file.write_bytes(b"damaged")
    one.file.unlink()
    [([there], lost)] = fetched(manifest)
    assert there.file.read_bytes() != b""
    assert (there.name, lost) == ("one", ["X: two"])
    there.file.unlink()
    monkeypatch.setattr(survey_packages, "download", lambda *_: lists_only(["two"], "", tmp_path))
    with pytest.raises(FetchError, match="X: nothing was fetched"):
        list(fetched(manifest))
