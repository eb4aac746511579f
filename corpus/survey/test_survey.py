"""corpus/survey, with packages made here in place of Debian's and PyPI's."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from corpus.survey.judged_files import judge
from corpus.survey.survey_packages import Fetched, FetchedGroup

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
    from sframegen.fleet.output_directory import OutputDirectory  # noqa: PLC0415 - as above
    from sframegen.fleet.report.stored_rows import stored_files  # noqa: PLC0415

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

    with OutputDirectory.opened(str(output / "survey")) as stored:
        rows = {Path(row.package).name: row for row in stored_files(stored)}
    row = rows[wheel.name]
    assert rows[deb.name].file_bytes == program.stat().st_size
    assert judge(row, wheel, tmp_path).faults == []
