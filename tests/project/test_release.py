"""What is released: a version with its changes, files with the same bytes from each build, a table that says what was tried."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from hashlib import sha256
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

import sframegen
from sframegen.backtrace.library_files import PRELOAD, SHARED, STATIC
from sframegen.program.build import MODULES
from tests import ROOT
from tools.release.building import missing_in, settle
from tools.release.trial import changed_since, contents

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.once

KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
NARROWED = """
import re, sys
from pathlib import Path
from tools.release.building import Source
work = Path(sys.argv[1])
(work / "out").mkdir()
(work / "source").mkdir()
source = Source(work / "source")
modules = work / "source/sframegen/program/build.py"
modules.write_text(re.sub(r"MODULES = \\(.*?\\n\\)", "MODULES = ('cfi.numbers',)", modules.read_text(), flags=re.DOTALL))
"""
BUILD = (
    NARROWED
    + """
source.sdist(work / "out")
source.pure_wheel(work / "out")
source.build("wheel", work / "out", {})
"""
)


def test_the_changelog_has_a_section_for_each_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", heading) for heading in headings[1:])
    assert headings[1].startswith(f"[{sframegen.__version__}] ")
    assert set(re.findall(r"^### (.*)$", text, re.MULTILINE)) <= KINDS


def sdist(path: Path, user: str, mode: int, names: list[str]) -> bytes:
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size, entry.uname, entry.mode, entry.mtime = len(name), user, mode, len(user)
            archive.addfile(entry, io.BytesIO(name.encode()))
    settle(path, 1_000_000_000)
    return path.read_bytes()


def test_an_sdist_has_nothing_of_the_machine_that_made_it(tmp_path: Path) -> None:
    ours = sdist(tmp_path / "a.tar.gz", "root", 0o600, ["p/setup.py", "p/README.md"])
    assert ours == sdist(tmp_path / "b.tar.gz", "someone", 0o664, ["p/README.md", "p/setup.py"])
    assert ours != sdist(tmp_path / "c.tar.gz", "root", 0o755, ["p/README.md", "p/setup.py"])  # executable
    with tarfile.open(tmp_path / "b.tar.gz") as archive:
        entry = archive.getmember("p/setup.py")
        assert (entry.uname, entry.mode, entry.mtime) == ("", 0o644, 1_000_000_000)


def test_a_wheel_without_a_module_that_could_not_be_compiled_is_found(tmp_path: Path) -> None:
    wheel = tmp_path / "some.whl"
    objects = [f"sframegen/profile/bpf/walker_{machine}.bpf.o" for machine in ("x86_64", "aarch64")]
    modules = [f"{name.replace('.', '/')}.abi3.so" for name in MODULES]
    libraries = [f"sframegen/backtrace/{name}" for name in (PRELOAD, STATIC, SHARED)]
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in objects + modules[1:] + libraries[1:]:
            archive.writestr(name, b"")
    assert missing_in(wheel, compiled=True) == [*modules[:1], *libraries[:1]]
    assert missing_in(wheel, compiled=False) == []


METADATA = "Metadata-Version: 2.4\nRequires-Dist: {}\n\n{}"


def wheel_of(path: Path, module: str, needs: str, description: str, year: int) -> Path:
    files = {"p.py": module, "p-1.dist-info/METADATA": METADATA.format(needs, description)}
    record = "".join(f"{name},sha256={sha256(text.encode()).hexdigest()},{len(text)}\n" for name, text in files.items())
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, "p-1.dist-info/RECORD": record}.items():
            archive.writestr(zipfile.ZipInfo(name, (year, 1, 1, 0, 0, 0)), text)
    return path


def test_what_was_tried_holds_for_wheels_that_install_the_same(tmp_path: Path) -> None:
    """A row of the table is kept when only dates and the description change, and goes when code or dependencies do."""
    tried = contents(wheel_of(tmp_path / "a.whl", "x = 1", "click", "One.", 2020))
    assert contents(wheel_of(tmp_path / "b.whl", "x = 1", "click", "Another one.", 2021)) == tried
    assert contents(wheel_of(tmp_path / "c.whl", "x = 2", "click", "One.", 2020)) != tried
    assert contents(wheel_of(tmp_path / "d.whl", "x = 1", "lief", "One.", 2020)) != tried


def test_an_sdist_has_the_types_of_all_compiled_modules() -> None:
    """Without its `.pxd`, a module compiles too: its attributes are then Python objects that nobody else sees."""
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    packed = {path for package, those in patterns.items() for one in those for path in (ROOT / package).glob(one)}
    types = {path for name in MODULES if (path := (ROOT / name.replace(".", "/")).with_suffix(".pxd")).exists()}
    assert types
    assert types - packed == set()


def test_wheels_are_tried_with_the_tests_of_their_own_sources(tmp_path: Path) -> None:
    names = ["setup.py", "sframegen/__init__.py", "cfi/errors.py"]
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        for name in names:
            archive.add(ROOT / name, f"sframegen-0/{name}")
    assert changed_since(tmp_path / "a.tar.gz") == []
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz") as archive:
        archive.add(ROOT / "LICENSE", "sframegen-0/cfi/errors.py")
        archive.add(ROOT / "LICENSE", "sframegen-0/cfi/gone.py")
    assert changed_since(tmp_path / "b.tar.gz") == ["cfi/errors.py", "cfi/gone.py"]


@pytest.fixture
def building() -> None:
    for tool in ("setuptools", "Cython"):
        if find_spec(tool) is None:
            pytest.skip(f"no {tool} in this environment: use make test-all")
    if subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], check=False, capture_output=True).returncode:
        pytest.skip("git does not list this folder")


@pytest.mark.full
@pytest.mark.usefixtures("building")
@pytest.mark.parametrize(("required", "status"), [("0", 1), ("", 0)])
def test_a_module_that_cannot_be_compiled_is_an_error_where_it_has_to_be(required: str, status: int, tmp_path: Path) -> None:
    """For lack of a compiler, or of its libc's headers: elsewhere it is left out with a warning."""
    failing = {"CC": "false", "SFRAMEGEN_PURE": required}
    build = f"{NARROWED}\nsource.build('wheel', work / 'out', {failing})"
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", build, tmp_path], check=False, capture_output=True, env=environ)
    assert done.returncode == status
    assert len(list((tmp_path / "out").iterdir())) == 1 - status


@pytest.mark.full
@pytest.mark.usefixtures("building")
def test_two_builds_of_a_commit_give_the_same_bytes(tmp_path: Path) -> None:
    """In folders of other names, for users of other habits. One module is compiled, for the time."""
    made = []
    for name, mask, zone in (("a", 0o022, "UTC"), ("another", 0o077, "Asia/Kolkata")):
        work = tmp_path / name
        work.mkdir()
        environ = os.environ | {"TZ": zone, "PYTHONPATH": str(ROOT)}
        subprocess.run(
            [sys.executable, "-c", BUILD, work], check=True, env=environ, umask=mask, cwd=tmp_path, stdout=subprocess.DEVNULL
        )
        made.append({path.name: path.read_bytes() for path in (work / "out").iterdir()})
    first, second = made
    assert len(first) == 3
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []
