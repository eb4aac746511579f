"""Wheels, Debian packages and sources of tests, from pip and apt as the machine has them configured; kept in CACHE/rewritten."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from corpus.fetch.__main__ import download
from corpus.kept_folders import kept
from tests import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

APT_SUITE = ROOT / "tools" / "apt-suite"
HOME = "rewritten"


def wheel(requirement: str) -> Path:
    """The wheel that pip takes for this interpreter."""
    return _one(
        f"wheels-{sys.implementation.cache_tag}/{requirement}", lambda folder: _pip(folder, "--only-binary=:all:", requirement)
    )


def deb(package: str, suite: str) -> Path:
    return _one(f"{suite}/{package}", lambda folder: download([package], suite, folder / "debs"))


def sources(*, sdist: str = "", source: str = "") -> Path:
    """An archive of sources: a project's on the package index, or the upstream part of a Debian source package."""
    if sdist:
        return _one(f"sources/{sdist}", lambda folder: _pip(folder, "--no-binary=:all:", sdist))
    command: list[str | Path] = [APT_SUITE, "sid:source", "apt-get", "-qq", "source", "--tar-only", "--download-only", source]
    return _one(f"sources/{source}", lambda folder: subprocess.run(command, cwd=folder, check=True))


def _pip(folder: Path, *arguments: str) -> None:
    command: list[str | Path] = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, *arguments]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


def _one(name: str, fetch: Callable[[Path], object]) -> Path:
    """The file that `fetch` leaves in an empty folder, or left there in an earlier run."""
    folder = kept(f"{HOME}/{name}", fetch)
    [file] = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".asc"]
    return file
