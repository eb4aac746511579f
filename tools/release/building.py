"""A commit → its sdist and wheels, with the same bytes whenever and wherever the same tools build it."""

from __future__ import annotations

import gzip
import os
import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile
from typing import TYPE_CHECKING

from tools.release.machines import ROOT

if TYPE_CHECKING:
    from pathlib import Path

BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, f'build_{sys.argv[1]}')(sys.argv[2])"
OBJECT_FILES = ("x86_64", "aarch64")  # of the kernel program


class Source:
    """A commit's files in a folder of their own."""

    def __init__(self, folder: Path, commit: str = "HEAD") -> None:
        """Unpack the commit below `folder`, which is empty. Raises CalledProcessError."""
        git: list[str | Path] = ["git", "-C", ROOT]
        seconds = subprocess.run([*git, "log", "-1", "--format=%ct", commit], check=True, text=True, stdout=subprocess.PIPE).stdout
        self.date = int(seconds)
        self.folder = folder
        archive = subprocess.run([*git, "archive", "--format=tar", commit], check=True, stdout=subprocess.PIPE).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)

    def build(self, kind: str, output: Path, environment: dict[str, str]) -> Path:
        """Build `sdist` or `wheel` with the setuptools of this Python, and return its file. Raises CalledProcessError."""
        for left in ("lib", "temp", "bdist"):  # of another machine
            for made in self.folder.glob(f"build/{left}*"):
                shutil.rmtree(made)
        fixed = {
            "PATH": os.environ["PATH"],
            "HOME": os.environ.get("HOME", "/"),
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
            "PYTHONHASHSEED": "0",
            "SOURCE_DATE_EPOCH": str(self.date),
            "CFLAGS": f"-ffile-prefix-map={self.folder}=.",
        }
        before = set(output.iterdir())
        command: list[str | Path] = [sys.executable, "-c", BUILD, kind, output]
        try:  # compilers warn of Cython's code for minutes: that is shown where it fails
            variables = fixed | environment
            subprocess.run(command, cwd=self.folder, env=variables, check=True, capture_output=True, text=True, umask=0o022)
        except subprocess.CalledProcessError as error:
            sys.stderr.write(error.stdout + error.stderr)
            raise
        [made] = set(output.iterdir()) - before
        return made

    def sdist(self, output: Path) -> Path:
        made = self.build("sdist", output, {"SFRAMEGEN_PURE": "1"})
        settle(made, self.date)
        return made

    def pure_wheel(self, output: Path) -> Path:
        return self.build("wheel", output, {"SFRAMEGEN_PURE": "1"})


def settle(sdist: Path, date: int) -> None:
    """Write an sdist again without what setuptools takes from the machine: users, order, dates, modes."""
    new = sdist.with_suffix(".new")
    with tarfile.open(sdist) as old, new.open("wb") as stream:
        packed = gzip.GzipFile("", "wb", 9, stream, mtime=date)
        with packed, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as settled:
            for entry in sorted(old.getmembers(), key=lambda one: one.name):
                entry.uid = entry.gid = 0
                entry.uname = entry.gname = ""
                entry.mtime = date
                entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
                entry.pax_headers = {}
                settled.addfile(entry, old.extractfile(entry) if entry.isfile() else None)
    new.replace(sdist)


def missing_in(wheel: Path, *, compiled: bool) -> list[str]:
    """Names of files that should be in a wheel and are not: what could not be compiled is left out of it with a warning only."""
    wanted = []
    if compiled:
        build = runpy.run_path(str(ROOT / "sframegen/program/build.py"))
        libraries = runpy.run_path(str(ROOT / "sframegen/backtrace/library_files.py"))
        wanted += [f"{name.replace('.', '/')}.abi3.so" for name in (*build["MODULES"], build["SHARED_MODULE"])]
        wanted += [f"sframegen/backtrace/{libraries[kind]}" for kind in ("SHARED", "STATIC", "PRELOAD")]
    wanted += [f"sframegen/profile/bpf/walker_{machine}.bpf.o" for machine in OBJECT_FILES]
    with zipfile.ZipFile(wheel) as archive:
        return sorted(set(wanted) - set(archive.namelist()))
