"""corpus/fetch, with an archive of small packages in place of Debian's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest

from tests import ROOT

if TYPE_CHECKING:
    from pathlib import Path

# The files of the checkout that it is made of.
PROGRAM = ("corpus/__init__.py", "corpus/fetch/__main__.py", "tests/__init__.py")

# Stands in for tools/apt-suite, called as: apt-suite SUITE apt-get -qq download PACKAGE..., or apt-cache depends ... PACKAGE
APT_SUITE = """#!/bin/sh
suite=$1
case $2 in
apt-get)
    shift 4
    for package; do
        echo "$suite $package" >> {archive}/downloads
        cp {archive}/"$package".deb .
    done ;;
apt-cache)
    for package; do :; done
    cat {archive}/"$package".depends ;;
esac
"""


class Project:
    """A checkout with only what corpus/fetch needs, and the archive that it fetches from."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.archive = root / "archive"
        self.cache = root / "cache"
        for directory in ("corpus/fetch", "tests", "tools", "archive"):
            (root / directory).mkdir(parents=True)
        for file in PROGRAM:
            shutil.copy(ROOT / file, root / file)
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
        environ = os.environ | {"SFRAMEGEN_CACHE": str(self.cache), "PYTHONPATH": str(self.root)}
        command = [sys.executable, "-m", "corpus.fetch", *names]
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


def test_a_program_comes_with_its_libraries_as_an_installation_of_its_own(project: Project) -> None:
    project.add_package("program", "4", {"usr/bin/program": "program\n", "usr/lib/data": "data\n"})
    (project.archive / "program.depends").write_text(
        "program\n  PreDepends: base-files\n  Depends: libone\n    libother\nbase-files\nlibone\nlibmodules-perl\n"
    )
    project.write_manifest(
        '[arm64-program]\npackage = "program"\nsuite = "sid"\narchitecture = "arm64"\nmember = "usr/bin/*"\nlibraries = true\n'
    )
    done = project.fetch()
    directory = project.cache / "corpus" / "arm64-program"
    root = directory / "root"
    assert (done.returncode, done.stdout, done.stderr) == (0, f"arm64-program 4 {root / 'usr/bin/program'}\n", "")
    assert project.downloads() == ["sid:arm64 program", "sid:arm64 libone"]
    assert (root / "usr/lib/data").read_text() == "data\n"
    assert (root / "lib/some-triplet/libone.so.1").read_text() == "one\n"
    assert sorted(directory.iterdir()) == [root]
    [locked] = project.lock().values()
    assert (locked["file"], locked["root"]) == ("arm64-program/root/usr/bin/program", "arm64-program/root")
    assert locked["sha256"] == sha256(b"program\n").hexdigest()
    project.fetch()
    assert project.downloads() == ["sid:arm64 program", "sid:arm64 libone"]


def test_what_was_fetched_without_libraries_is_fetched_again_with_them(project: Project) -> None:
    project.fetch()
    (project.archive / "libone.depends").write_text("libone\nlibtwo\n")
    project.add_package("libtwo", "2", {"usr/lib/some-triplet/libtwo.so.2": "two\n"})
    manifest = (project.root / "corpus" / "manifest.toml").read_text()
    project.write_manifest(manifest + "libraries = true\n")
    project.fetch()
    assert project.lock()["one"]["file"] == "one/root/usr/lib/some-triplet/libone.so.1"
    assert project.downloads() == ["sid libone", "sid libone", "sid libtwo"]


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
