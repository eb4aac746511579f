"""Fetches the packages of survey.toml, whole, with apt and pip as the machine has them configured; keeps them in the cache.

They lie in CACHE/survey, a folder for each suite and kind of wheel. CACHE/survey/lock.json records version and sha256 of each;
what is there and undamaged is not fetched again. What an archive lists and does not have is left out, and the report says so.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from corpus.fetch.__main__ import FetchError, Locked, cache_directory, download, sha256_of, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MANIFEST = Path(__file__).with_name("survey.toml")


class Fetched(NamedTuple):
    """A package in the cache."""

    group: str  #: as the manifest calls it
    name: str
    version: str
    file: Path


@dataclass(frozen=True)
class Group:
    """Packages of the manifest that one command fetches; `folder` is theirs in the cache."""

    about: str
    packages: tuple[str, ...]
    folder: str
    fetch: Callable[[Sequence[str], Path], Iterator[tuple[str, str, Path]]]  # names, an empty folder -> name, version, file of each

    def key(self, package: str) -> str:
        """Return the package's name in the lock file."""
        return f"{self.folder}/{package}"


def groups(manifest: Path = MANIFEST) -> list[Group]:
    tables: dict[str, list[dict[str, Any]]] = tomllib.loads(manifest.read_text())
    kinds = (("debian", debian_group), ("wheels", wheels_group))
    return [make(table) for kind, make in kinds for table in tables.get(kind, [])]


def debian_group(table: dict[str, Any]) -> Group:
    suite = ":".join(table[field] for field in ("suite", "architecture") if field in table)

    def fetch(packages: Sequence[str], folder: Path) -> Iterator[tuple[str, str, Path]]:
        for deb in download(list(packages), suite, folder / "debs"):
            name, version = (
                subprocess.check_output(["dpkg-deb", "--field", deb, field], text=True).strip() for field in ("Package", "Version")
            )
            yield name, version, deb

    return Group(table["about"], tuple(table["packages"]), f"debian-{suite.replace(':', '-')}", fetch)


def wheels_group(table: dict[str, Any]) -> Group:
    options = [f"--platform={platform}_{table['machine']}" for platform in table["platforms"]]
    options += ["--only-binary=:all:", "--no-deps", f"--python-version={table['python']}", "--quiet"]

    def fetch(packages: Sequence[str], folder: Path) -> Iterator[tuple[str, str, Path]]:
        for package in packages:
            scratch = folder / package
            subprocess.run([sys.executable, "-m", "pip", "download", *options, "--dest", scratch, package], check=True)
            [wheel] = scratch.iterdir()
            yield package, wheel.name.split("-")[1], wheel

    return Group(table["about"], tuple(table["packages"]), f"wheels-{table['machine']}", fetch)


class FetchedGroup(NamedTuple):
    packages: list[Fetched]
    lost: list[str]  #: those that the archive does not give, as `GROUP: NAME`


def fetched(manifest: Path = MANIFEST) -> Iterator[FetchedGroup]:
    """The packages, group for group. Raises FetchError where nothing of a group can be fetched."""
    home = cache_directory() / "survey"
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as running:
        fcntl.flock(running, fcntl.LOCK_EX)
        lock_file = home / "lock.json"
        lock: dict[str, Locked] = json.loads(lock_file.read_text()) if lock_file.exists() else {}
        for group in groups(manifest):
            missing = [package for package in group.packages if not is_present(lock.get(group.key(package)), home)]
            if missing:
                for package in missing:
                    lock.pop(group.key(package), None)
                with tempfile.TemporaryDirectory(dir=home, prefix=".new.") as scratch:
                    keep(group, missing, home, Path(scratch), lock)
                write_atomically(lock_file, json.dumps(lock, indent=2, sort_keys=True) + "\n")
            names = {package: lock.get(group.key(package)) for package in group.packages}
            there = [Fetched(group.about, one["package"], one["version"], home / one["file"]) for one in names.values() if one]
            if not there:
                raise FetchError(f"{group.about}: nothing was fetched")
            yield FetchedGroup(there, [f"{group.about}: {name}" for name, one in names.items() if one is None])


def keep(group: Group, packages: Sequence[str], home: Path, scratch: Path, lock: dict[str, Locked]) -> None:
    (home / group.folder).mkdir(exist_ok=True)
    for name, version, file in each_fetched(group, packages, scratch):
        kept = file.rename(home / group.folder / file.name)
        lock[group.key(name)] = {
            "package": name,
            "version": version,
            "sha256": sha256_of(kept),
            "file": f"{group.folder}/{kept.name}",
        }


def each_fetched(group: Group, packages: Sequence[str], scratch: Path) -> Iterator[tuple[str, str, Path]]:
    """Yield as `Group.fetch` does; if that fails, package for package, without those that fail alone."""
    for chosen in (packages, *([package] for package in packages)):
        folder = Path(tempfile.mkdtemp(dir=scratch))
        with contextlib.suppress(subprocess.CalledProcessError):
            yield from list(group.fetch(chosen, folder))
            if chosen is packages:
                return


def is_present(locked: Locked | None, home: Path) -> bool:
    if locked is None:
        return False
    file = home / locked["file"]
    return file.is_file() and sha256_of(file) == locked["sha256"]
