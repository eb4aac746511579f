"""add-tree and remove-tree on a root that is installed: dpkg's checksums, times of directories, what is mounted in it."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sframegen import add_section
from sframegen.elf.file import open_elf
from sframegen.format.locate import sframe_of
from tests.packages.needed_tools import needs

if TYPE_CHECKING:
    from tests.support.peers import Compiler

STATUS = """Package: tried
Status: install ok installed
Maintainer: nobody
Architecture: all
Version: 1
Description: a package

"""
CLONE_NEWNS, MS_BIND, MS_PRIVATE, MS_REC = 0x20000, 4096, 1 << 18, 16384


def sframegen(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-P", "-m", "sframegen", *arguments], check=False, capture_output=True, text=True)


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


@pytest.fixture
def root(tmp_path: Path, compile_c: Compiler) -> Path:
    """An installed package with a program, a library below a link of the root, and one that another package diverts."""
    root = tmp_path / "root"
    info = root / "var/lib/dpkg/info"
    info.mkdir(parents=True)
    for directory in ("usr/bin", "usr/lib/deep"):
        (root / directory).mkdir(parents=True)
    (root / "lib").symlink_to("usr/lib")
    program = compile_c("int main(void) { return 0; }", "-O2", name="program")
    for name in ("usr/bin/it", "usr/lib/deep/libit.so", "usr/bin/moved.real", "usr/bin/moved", "usr/bin/changed"):
        shutil.copy(program, root / name)
    (root / "usr/lib/text").write_text("no program")
    sums = {"usr/bin/it": "usr/bin/it", "lib/deep/libit.so": "usr/lib/deep/libit.so", "lib/text": "usr/lib/text"}
    lines = [f"{md5(root / place)}  {name}\n" for name, place in sums.items()]
    lines += [f"{md5(program)}  usr/bin/moved\n", f"{'0' * 32}  usr/bin/changed\n"]
    (info / "tried.md5sums").write_text("".join(lines))
    (info / "tried.list").write_text("".join(f"/{name}\n" for name in (*sums, "usr/bin/moved", "usr/bin/changed")))
    (root / "var/lib/dpkg/status").write_text(STATUS)
    (root / "var/lib/dpkg/diversions").write_text("/usr/bin/moved\n/usr/bin/moved.real\nother\n")
    return root


def lists(root: Path) -> bytes:
    return (root / "var/lib/dpkg/info/tried.md5sums").read_bytes()


def test_checksums_are_renewed_and_given_back(root: Path) -> None:
    before = lists(root)
    done = sframegen("add-tree", "--update-checksums", root)
    assert done.returncode == 0
    assert "3 checksums renewed in 1 list of dpkg" in done.stderr
    after = dict(line.split("  ")[::-1] for line in lists(root).decode().splitlines())
    assert after["usr/bin/it"] == md5(root / "usr/bin/it")
    assert after["lib/deep/libit.so"] == md5(root / "usr/lib/deep/libit.so")
    assert after["usr/bin/moved"] == md5(root / "usr/bin/moved.real")
    assert after["usr/bin/changed"] == "0" * 32  # it was wrong before
    assert sframegen("add-tree", "--update-checksums", root).stderr == ""
    assert sframegen("remove-tree", "--update-checksums", root).returncode == 0
    assert lists(root) == before


def test_a_run_that_was_interrupted_is_continued(root: Path) -> None:
    """It had replaced a file, and no list yet."""
    add_section(root / "usr/bin/it")
    assert "3 checksums renewed" in sframegen("add-tree", "--update-checksums", root).stderr


def test_debsums(root: Path) -> None:
    needs("debsums")

    def differing() -> list[str]:
        command = ["debsums", "--root", str(root), "--silent"]
        return subprocess.run(
            command, check=False, capture_output=True, text=True, env=os.environ | {"LC_ALL": "C"}
        ).stderr.splitlines()

    changed = differing()
    assert len(changed) == 1
    assert "usr/bin/changed" in changed[0]
    sframegen("add-tree", root)
    assert len(differing()) == 3  # with --root, it does not look where a file is diverted to
    sframegen("add-tree", "--update-checksums", root)
    assert differing() == changed
    sframegen("remove-tree", "--update-checksums", root)
    assert differing() == changed


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("var/lib/dpkg/info/tried.md5sums", "symbolic link"),
        ("var/lib/dpkg", "symbolic link"),
        ("var/lib/dpkg/diversions", "symbolic link"),
    ],
)
def test_no_link_is_followed(root: Path, tmp_path: Path, name: str, message: str) -> None:
    (root / name).rename(tmp_path / "elsewhere")
    (root / name).symlink_to(tmp_path / "elsewhere")
    done = sframegen("add-tree", "--update-checksums", "--fatal", root)
    assert done.returncode == 1
    assert message in done.stderr
    assert "0 refused" in done.stdout or "given a section" in done.stdout
    assert not list(tmp_path.glob("elsewhere/.sframegen*"))


def test_a_root_without_dpkg_is_named(root: Path) -> None:
    shutil.rmtree(root / "var")
    done = sframegen("add-tree", "--update-checksums", root)
    assert done.returncode == 0
    assert "var/lib/dpkg/info" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_dry_run_renews_nothing(root: Path) -> None:
    before = lists(root)
    sframegen("add-tree", "--update-checksums", "--dry-run", root)
    assert lists(root) == before


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_times_of_directories_stay(root: Path, jobs: str) -> None:
    directories = [path for path in (root, *root.rglob("*")) if path.is_dir() and not path.is_symlink()]
    for number, path in enumerate(directories):
        os.utime(path, ns=(10**18 + number, 10**18 + 7 * number))
    before = [path.stat().st_mtime_ns for path in directories]
    for command in ("add-tree", "remove-tree"):
        assert sframegen(command, "-j", jobs, root).returncode == 0
        assert [path.stat().st_mtime_ns for path in directories] == before


def test_one_file_system(root: Path, tmp_path: Path) -> None:
    """A directory and a file from elsewhere are mounted, in a name space of the test's own."""
    other = Path("/dev/shm") / f"sframegen-{os.getpid()}"
    if os.geteuid() != 0 or not other.parent.is_dir() or other.parent.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs root and a second file system")
    libc = ctypes.CDLL(None, use_errno=True)

    def mount() -> None:
        if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None):
            os._exit(77)
        for name in ("usr/lib/deep", "usr/bin/it"):
            if libc.mount(os.fsencode(other / name), os.fsencode(root / name), None, MS_BIND, None):
                os._exit(77)

    def run(*options: str) -> str | None:
        command = [sys.executable, "-P", "-m", "sframegen", "add-tree", "--dry-run", *options, str(root)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, preexec_fn=mount)
        return None if done.returncode == 77 else done.stdout

    try:
        shutil.copytree(root / "usr", other / "usr")
        everything = run()
        if everything is None:
            pytest.skip("this user may not mount")
        assert everything.startswith("5 files would be")
        assert (run("--one-file-system") or "").startswith("3 files would be")
    finally:
        shutil.rmtree(other, ignore_errors=True)
    assert sframe_of(open_elf(root / "usr/bin/it")) is None
