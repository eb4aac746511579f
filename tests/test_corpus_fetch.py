"""corpus/fetch, with an archive of small packages in place of Debian's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.once

FETCH = Path(__file__).resolve().parents[1] / "corpus" / "fetch"

# Stands in for tools/apt-suite, called as: apt-suite SUITE apt-get -qq download PACKAGE
APT_SUITE = """#!/bin/sh
echo "$1 $5" >> {archive}/downloads
cp {archive}/"$5".deb .
"""


class Project:
    """A checkout with only what corpus/fetch needs, and the archive that it fetches from."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.archive = root / "archive"
        self.cache = root / "cache"
        for directory in ("corpus", "tools", "archive"):
            (root / directory).mkdir()
        shutil.copy(FETCH, root / "corpus" / "fetch")
        apt_suite = root / "tools" / "apt-suite"
        apt_suite.write_text(APT_SUITE.format(archive=self.archive))
        apt_suite.chmod(0o755)

    def add_package(self, name: str, version: str, files: dict[str, str]) -> None:
        tree = self.root / "tree"
        shutil.rmtree(tree, ignore_errors=True)
        control = f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: Nobody <nobody@localhost>\nDescription: x\n"
        for path, content in {"DEBIAN/control": control, **files}.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_text(content)
        (tree / "usr" / "lib" / "link.so").symlink_to("real.so")
        deb = self.archive / f"{name}.deb"
        subprocess.run(["dpkg-deb", "--build", str(tree), str(deb)], check=True, stdout=subprocess.DEVNULL)

    def write_manifest(self, text: str) -> None:
        (self.root / "corpus" / "manifest.toml").write_text(text)

    def fetch(self, *names: str) -> subprocess.CompletedProcess[str]:
        environ = os.environ | {"SFRAMEGEN_CACHE": str(self.cache)}
        command = [str(self.root / "corpus" / "fetch"), *names]
        return subprocess.run(command, env=environ, check=False, capture_output=True, text=True)

    def downloads(self) -> list[str]:
        return (self.archive / "downloads").read_text().splitlines()

    def lock(self) -> dict[str, Any]:
        lock: dict[str, Any] = json.loads((self.cache / "corpus" / "lock.json").read_text())
        return lock


@pytest.fixture
def project(tmp_path: Path) -> Project:
    if shutil.which("dpkg-deb") is None:
        pytest.skip("no dpkg-deb: not a Debian machine")
    project = Project(tmp_path)
    project.add_package("libone", "1.2-3", {"usr/lib/some-triplet/libone.so.1": "one\n", "usr/lib/real.so": "real\n"})
    project.write_manifest('[one]\npackage = "libone"\nsuite = "sid"\nmember = "usr/lib/*/libone.so.*"\n')
    return project


def test_puts_the_member_into_the_cache_and_records_it(project: Project) -> None:
    done = project.fetch()
    file = project.cache / "corpus" / "one" / "libone.so.1"
    assert (done.returncode, done.stdout, done.stderr) == (0, f"one 1.2-3 {file}\n", "")
    assert file.read_text() == "one\n"
    assert project.lock() == {
        "one": {
            "package": "libone",
            "version": "1.2-3",
            "package_sha256": sha256((project.archive / "libone.deb").read_bytes()).hexdigest(),
            "sha256": sha256(b"one\n").hexdigest(),
            "file": "one/libone.so.1",
        }
    }
    assert project.downloads() == ["sid libone"]


def test_fetches_again_only_what_is_missing_or_damaged(project: Project) -> None:
    file = project.cache / "corpus" / "one" / "libone.so.1"
    project.fetch()
    project.fetch()
    assert project.downloads() == ["sid libone"]
    file.write_text("damaged")
    project.fetch()
    assert file.read_text() == "one\n"
    file.unlink()
    project.fetch()
    assert file.read_text() == "one\n"
    assert project.downloads() == ["sid libone"] * 3


def test_a_newer_version_is_told_in_one_line_and_kept(project: Project) -> None:
    manifest = (project.root / "corpus" / "manifest.toml").read_text()
    project.write_manifest(manifest + 'version = "1.2-2"\n')
    done = project.fetch("one")
    assert done.returncode == 0
    assert done.stderr == "corpus/fetch: one is not as recorded: version 1.2-3, recorded was 1.2-2\n"


@pytest.mark.parametrize(
    ("member", "matches"),
    [
        ("usr/lib/*/libtwo.so", 0),
        ("usr/lib/*.so*", 2),
        ("usr/lib/link.so", 0),  # a symbolic link is not the file
    ],
)
def test_a_pattern_that_is_not_one_file_fails_and_the_others_are_still_fetched(project: Project, member: str, matches: int) -> None:
    manifest = (project.root / "corpus" / "manifest.toml").read_text()
    project.write_manifest(f'[bad]\npackage = "libone"\nsuite = "sid"\nmember = "{member}"\n{manifest}')
    done = project.fetch()
    assert done.returncode == 1
    assert done.stderr == f"corpus/fetch: bad: libone.deb: {member} matches {matches} files\n"
    assert list(project.lock()) == ["one"]


def test_a_package_that_apt_does_not_give_fails_alone(project: Project) -> None:
    manifest = (project.root / "corpus" / "manifest.toml").read_text()
    project.write_manifest(f'[gone]\npackage = "gone"\nsuite = "sid"\nmember = "x"\n{manifest}')
    done = project.fetch("gone", "one")
    assert done.returncode == 1
    assert "corpus/fetch: gone: " in done.stderr
    assert list(project.lock()) == ["one"]


def test_large_files_are_fetched_only_by_name(project: Project) -> None:
    manifest = (project.root / "corpus" / "manifest.toml").read_text()
    project.write_manifest(manifest + "large = true\n")
    assert project.fetch().stdout == ""
    assert project.fetch("one").stdout.startswith("one 1.2-3 ")


def test_unknown_names_are_refused_before_anything_is_fetched(project: Project) -> None:
    done = project.fetch("one", "three")
    assert done.returncode == 2
    assert done.stderr.endswith("fetch: error: not in the manifest: three; it has one\n")
    assert not project.cache.exists()
