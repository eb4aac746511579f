"""add-tree and remove-tree on a root that is installed: times of directories, what is mounted in it."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sframegen.elf.file import open_elf
from sframegen.format.locate import find_sframe

if TYPE_CHECKING:
    from tests.support.peers import Compiler

CLONE_NEWNS, MS_BIND, MS_PRIVATE, MS_REC = 0x20000, 4096, 1 << 18, 16384


def sframegen(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-P", "-m", "sframegen", *arguments], check=False, capture_output=True, text=True)


@pytest.fixture
def root(tmp_path: Path, compile_c: Compiler) -> Path:
    """Three programs, two libraries, and a link to a directory."""
    root = tmp_path / "root"
    for directory in ("usr/bin", "usr/lib/deep"):
        (root / directory).mkdir(parents=True)
    (root / "lib").symlink_to("usr/lib")
    program = compile_c("int main(void) { return 0; }", "-O2", name="program")
    for name in ("usr/bin/it", "usr/lib/deep/libit.so", "usr/lib/libit.so", "usr/bin/second", "usr/bin/third"):
        shutil.copy(program, root / name)
    return root


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
    assert find_sframe(open_elf(root / "usr/bin/it")) is None
