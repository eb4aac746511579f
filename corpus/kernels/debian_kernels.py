"""Debian's kernels, and what a program needs to run: fetched once, and kept in the cache."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from corpus.fetch.__main__ import APT_SUITE, FetchError, cache_directory, download, unpack_member

USERLAND_SUITE = "trixie"
# Debian's Python with the modules that sframegen imports, libbpf, and capstone, which reads PLTs; each needs libc6.
USERLAND = (
    *("python3.13-minimal", "libpython3.13-minimal", "libpython3.13-stdlib"),
    *("libbpf1", "libelf1t64", "zlib1g", "libzstd1", "libffi8", "libexpat1", "libbz2-1.0", "liblzma5", "libssl3t64", "libuuid1"),
    *("libncursesw6", "libtinfo6", "libc6", "libgcc-s1", "python3-capstone", "libcapstone5"),
)


class Kernel(NamedTuple):
    suite: str
    architecture: str  # as Debian calls it

    @property
    def name(self) -> str:
        return f"{self.suite}-{self.architecture}"

    @property
    def too_old(self) -> bool:
        """True if the profiler has to refuse it."""
        return self.suite == "bullseye"

    @property
    def place(self) -> str:
        """As tools/apt-suite takes it."""
        return f"{self.suite}:{self.architecture}"


KERNELS = tuple(Kernel(suite, machine) for suite in ("bullseye", "bookworm", "trixie", "sid") for machine in ("amd64", "arm64"))


def kernels_directory() -> Path:
    return cache_directory() / "kernels"


def dependencies(package: str, place: str) -> list[str]:
    lines = subprocess.check_output([APT_SUITE, place, "apt-cache", "depends", package], text=True).splitlines()
    return [line.rpartition(" ")[2] for line in lines if line.lstrip(" |").startswith("Depends:")]


def image_package(kernel: Kernel) -> str:
    """Return the package that has the kernel's file: Debian divides the newest kernels into several. Raises FetchError."""
    wanted = r"linux-(image|binary)-\d"
    package = f"linux-image-{kernel.architecture}"
    while following := next((name for name in dependencies(package, kernel.place) if re.match(wanted, name)), None):
        package = following
    if not re.match(wanted, package):
        raise FetchError(f"{kernel.name}: {package} depends on no kernel")
    return package


def fetch_kernel(kernel: Kernel) -> Path:
    """Return the file that boots; one that a suite has no longer is replaced. Raises FetchError, CalledProcessError."""
    folder = kernels_directory() / kernel.name
    package = image_package(kernel)
    wanted = folder / package
    if not wanted.is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            [deb] = download([package], kernel.place, Path(scratch, "debs"))
            file = unpack_member(deb, "*/vmlinuz*", Path(scratch))
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            file.rename(wanted)
    return wanted


def fetch_userland(architecture: str) -> Path:
    """Return a folder with Python, libbpf and the libraries that they need, for that machine."""
    folder = kernels_directory() / f"userland-{architecture}-{crc32(' '.join(USERLAND).encode()):08x}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            new = Path(scratch, "new")
            for deb in download(list(USERLAND), f"{USERLAND_SUITE}:{architecture}", Path(scratch, "debs")):
                subprocess.run(["dpkg-deb", "--extract", deb, new], check=True)
            for name in ("bin", "lib", "lib64"):
                if not (new / name).exists():
                    (new / name).symlink_to(f"usr/{name}")
            for useless in ("usr/share", "usr/lib/python3.13/test", "usr/lib/python3.13/lib2to3"):
                shutil.rmtree(new / useless, ignore_errors=True)
            new.rename(folder)
    return folder
