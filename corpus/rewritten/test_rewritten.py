"""corpus/rewritten on packages of one small library; and that its comparisons see differences."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tomllib
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import ZipFile

import pytest

from corpus.rewritten import deb_trials, wheel_trials
from corpus.rewritten.__main__ import MANIFEST
from corpus.rewritten.rewriting import rewritten
from corpus.rewritten.rewritten_report import markdown

if TYPE_CHECKING:
    from tests.support.peers import Compiler

pytestmark = [pytest.mark.once, pytest.mark.full]


def make_wheel(wheel: Path, files: dict[str, bytes]) -> Path:
    rows = []
    with ZipFile(wheel, "w") as archive:
        for name, contents in files.items():
            archive.writestr(name, contents)
            digest = urlsafe_b64encode(hashlib.sha256(contents).digest()).rstrip(b"=").decode()
            rows.append(f"{name},sha256={digest},{len(contents)}\n")
        archive.writestr("one-1.dist-info/RECORD", "".join(rows) + "one-1.dist-info/RECORD,,\n")
    return wheel


@pytest.fixture
def library(compile_c: Compiler) -> bytes:
    return compile_c("int f(int x) { return x + 1; }\n", "-shared", "-fPIC", "-O1").read_bytes()


@pytest.fixture
def wheel(library: bytes, tmp_path: Path) -> Path:
    return make_wheel(tmp_path / "one-1-py3-none-any.whl", {"one/lib.so": library, "one/__init__.py": b"x = 1\n"})


@pytest.fixture
def deb(library: bytes, tmp_path: Path) -> Path:
    for tool in ("dpkg-deb", "lintian"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool}")
    tree = tmp_path / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "usr/lib").mkdir(parents=True)
    (tree / "usr/lib/lib.so").write_bytes(library)
    (tree / "DEBIAN/md5sums").write_text(f"{hashlib.md5(library).hexdigest()}  usr/lib/lib.so\n")
    control = (
        "Package: one\nVersion: 1\nArchitecture: amd64\nMaintainer: Nobody <nobody@localhost>\nInstalled-Size: 20\nDescription: x\n"
    )
    (tree / "DEBIAN/control").write_text(control)
    package = tmp_path / "one_1_amd64.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", tree, package], check=True, stdout=subprocess.DEVNULL)
    return package


def test_a_wheel_and_its_report(wheel: Path, tmp_path: Path) -> None:
    one = rewritten("one", wheel, tmp_path / "new")
    wheel_trials.compared(one, tmp_path / "scratch")
    assert (one.differences, one.elf_files, one.sections) == ([], 1, 1)
    assert "| one | 1 | 1 | 1 |" in markdown([one], [], "a run")


def test_a_wheel_with_another_difference_than_sections(wheel: Path, library: bytes, tmp_path: Path) -> None:
    one = rewritten("one", wheel, tmp_path / "new")
    make_wheel(one.after, {"one/lib.so": library + b"more", "one/__init__.py": b"x = 2\n"})
    wheel_trials.compared(one, tmp_path / "scratch")
    said = " ".join(one.differences)
    assert "one/__init__.py: changed, and no ELF file" in said
    assert "one/lib.so: other bytes after `sframegen remove`" in said
    assert "- one: one/__init__.py: changed" in markdown([one], [], "a run")


def test_a_deb(deb: Path, tmp_path: Path) -> None:
    one = rewritten("one", deb, tmp_path / "new")
    deb_trials.compared(one, tmp_path / "scratch")
    assert (one.differences, one.elf_files, one.sections) == ([], 1, 1)


def test_a_deb_with_other_differences_than_sections(deb: Path, tmp_path: Path) -> None:
    one = rewritten("one", deb, tmp_path / "new")
    tree = tmp_path / "tree"
    (tree / "usr/lib/lib.so").chmod(0o600)
    (tree / "DEBIAN/md5sums").write_text(f"{'0' * 32}  usr/lib/lib.so\n")
    subprocess.run(["dpkg-deb", "-Zgzip", "--root-owner-group", "--build", tree, one.after], check=True, stdout=subprocess.DEVNULL)
    deb_trials.compared(one, tmp_path / "scratch")
    said = " ".join(one.differences)
    for difference in (
        "other compression",
        "./usr/lib/lib.so: another entry",
        "0 files have changed, 1 are reported",
        "another sum",
    ):
        assert difference in said


def test_outcomes_of_tests(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(
        "import pytest\ndef test_a(): pass\ndef test_b(): assert 0\n@pytest.mark.skip\ndef test_c(): pass\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    environment = wheel_trials.Environment.__new__(wheel_trials.Environment)
    environment.directory, environment.python = tmp_path, Path(sys.executable)
    found = wheel_trials.outcomes(["test_x.py"], tmp_path, environment)
    assert wheel_trials.summary(found) == "1 passed, 1 failed, 1 skipped"
    assert found["test_x::test_b", "failure"] == 1


def test_the_manifest_s_tests_and_jobs_are_of_its_packages() -> None:
    manifest = tomllib.loads(MANIFEST.read_text())
    wheel_names = {name.partition("==")[0] for name in manifest["wheels"]["packages"]}
    assert manifest["tests"].keys() - {"others"} <= wheel_names
    assert manifest["jobs"].keys() <= set(manifest["debian"]["packages"])
