"""What is released: files with the same bytes from each build, all modules in them, and a list of their parts."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import pytest

from sframegen.backtrace.library_files import PRELOAD, SHARED, STATIC
from sframegen.program.build import MODULES, SHARED_MODULE
from tests import ROOT
from tests.project.test_install import copy_sources
from tools.release import sbom
from tools.release.building import missing_in, settle

BUILD = """
import re, sys
from pathlib import Path
from tools.release.building import Source
work = Path(sys.argv[1])
(work / "out").mkdir()
(work / "source").mkdir()
source = Source(work / "source")
modules = work / "source/sframegen/program/build.py"
modules.write_text(re.sub(r"MODULES = \\(.*?\\n\\)", "MODULES = ('sframegen.base.columns',)", modules.read_text(), flags=re.DOTALL))
source.sdist(work / "out")
source.pure_wheel(work / "out")
source.build("wheel", work / "out", {})
"""


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
    modules = [f"{name.replace('.', '/')}.abi3.so" for name in (SHARED_MODULE, *MODULES)]
    libraries = [f"sframegen/backtrace/{name}" for name in (PRELOAD, STATIC, SHARED)]
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in objects + modules[1:] + libraries[1:]:
            archive.writestr(name, b"")
    assert missing_in(wheel, compiled=True) == [*modules[:1], *libraries[:1]]
    assert missing_in(wheel, compiled=False) == []


def reported(name: str, version: str) -> dict[str, object]:
    """An entry of pip's report."""
    download = {"url": f"https://example.org/{name}-{version}.whl", "archive_info": {"hashes": {"sha256": "0" * 64}}}
    return {"metadata": {"name": name, "version": version}, "download_info": download, "is_direct": False}


def test_the_sbom_names_each_part_with_version_hash_and_license(tmp_path: Path) -> None:
    wheel = tmp_path / "sframegen-9-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    bill = sbom.document("9", [wheel], [reported("lief", "1.0.0"), reported("Click", "8.1")])
    ours = bill["metadata"]["component"]
    assert (ours["version"], ours["purl"]) == ("9", "pkg:pypi/sframegen@9")
    assert ours["licenses"] == [{"expression": "Apache-2.0 AND (Apache-2.0 OR GPL-2.0-only)"}]
    assert ours["externalReferences"][0]["hashes"] == [{"alg": "SHA-256", "content": sha256(b"wheel").hexdigest()}]
    click, lief = bill["components"]
    assert (click["purl"], click["licenses"]) == ("pkg:pypi/click@8.1", [{"license": {"id": "BSD-3-Clause"}}])
    assert lief["hashes"] == [{"alg": "SHA-256", "content": "0" * 64}]
    assert {"name": "sframegen:condition", "value": "platform_machine != 's390x'"} in lief["properties"]
    assert bill["dependencies"][0]["dependsOn"] == [click["bom-ref"], lief["bom-ref"]]


@pytest.fixture
def building() -> None:
    for tool in ("setuptools", "Cython"):
        if find_spec(tool) is None:
            pytest.skip(f"no {tool} in this environment: use make test-all")
    if subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], check=False, capture_output=True).returncode:
        pytest.skip("git does not list this folder")


@pytest.mark.usefixtures("building")
def test_metadata_say_the_licenses_and_link_to_nothing_that_is_not_there(tmp_path: Path) -> None:
    copy_sources(tmp_path)
    build = "from setuptools import build_meta; build_meta.prepare_metadata_for_build_wheel('.')"
    environ = os.environ | {"SFRAMEGEN_PURE": "1"}
    subprocess.run([sys.executable, "-c", build], check=True, cwd=tmp_path, env=environ, capture_output=True)
    [folder] = tmp_path.glob("*.dist-info")
    fields, _, text = (folder / "METADATA").read_text().partition("\n\n")
    assert "\nLicense-Expression: Apache-2.0 AND (Apache-2.0 OR GPL-2.0-only)\n" in fields
    assert {path.name for path in (folder / "licenses").rglob("*") if path.is_file()} == {"LICENSE", "GPL-2.0-only.txt"}
    assert text.startswith("# sframegen\n")
    assert re.findall(r"\]\((?!https?:|#)[^)]*\)|<[a-z]+ [^>]*(?:src|href)=", text) == []


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
    [name] = [name for name in first if name.endswith(".tar.gz")]
    with tarfile.open(fileobj=io.BytesIO(first[name])) as archive:
        packed = {entry.name.partition("/")[2] for entry in archive if entry.isfile()}
    listed = subprocess.run(["git", "-C", ROOT, "ls-tree", "-r", "--name-only", "HEAD"], check=True, capture_output=True, text=True)
    assert set(listed.stdout.splitlines()) == {one for one in packed - {"PKG-INFO", "setup.cfg"} if ".egg-info/" not in one}
    assert len(first) == 3
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []
