"""Fetches the binaries of ../manifest.toml from Debian's packages: without names all except the large ones.

NAME's file goes to CACHE/corpus/NAME/, CACHE being $SFRAMEGEN_CACHE, or sframegen in $XDG_CACHE_HOME or ~/.cache. What was got
stands in CACHE/corpus/lock.json: package, version, sha256 of package and file, and the file's path under CACHE/corpus. What is
there already is not fetched again. An entry with `libraries = true` can be run: its package and the libraries that it depends on
are unpacked whole into CACHE/corpus/NAME/root, NAME's file among them.
"""

from __future__ import annotations

import argparse
import fcntl
import fnmatch
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from tests import ROOT

MANIFEST = ROOT / "corpus" / "manifest.toml"
APT_SUITE = ROOT / "tools" / "apt-suite"

Entry = dict[str, Any]  # of the manifest
Locked = dict[str, str]  # of the lock file


class FetchError(Exception):
    pass


def cache_directory() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SFRAMEGEN_CACHE") or Path(home, "sframegen")).absolute()


def sha256_of(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def download(packages: list[str], suite: str, directory: Path) -> list[Path]:
    """The packages' .deb files in `directory`, a new one; apt has checked the archive's signature and the packages' hashes.

    `suite` is as tools/apt-suite takes it: `sid`, `sid:arm64`.
    """
    directory.mkdir()
    subprocess.run([APT_SUITE, suite, "apt-get", "-qq", "download", *packages], cwd=directory, check=True)
    return sorted(directory.glob("*.deb"))


def libraries_of(package: str, suite: str) -> list[str]:
    """The packages of shared libraries that a package depends on."""
    ignored = ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
    options = ["--recurse", *(f"--no-{relation}" for relation in ignored)]
    command = [str(APT_SUITE), suite, "apt-cache", "depends", *options, package]
    lines = subprocess.check_output(command, text=True).splitlines()
    return sorted({name for name in lines if name.startswith(("lib", "zlib")) and not name.endswith("-perl")} - {package})


def unpack_member(deb: Path, pattern: str, directory: Path) -> Path:
    """The one regular file of the package whose path matches `pattern`, written into `directory` under its own name."""
    found = []
    with (
        subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE) as dpkg,
        tarfile.open(fileobj=dpkg.stdout, mode="r|") as tar,
    ):
        for member in tar:
            content = tar.extractfile(member) if member.isreg() else None
            if content is None or not fnmatch.fnmatchcase(member.name.removeprefix("./"), pattern):
                continue
            found.append(directory / Path(member.name).name)
            with found[-1].open("wb") as out:
                shutil.copyfileobj(content, out)
            found[-1].chmod(member.mode)
    if len(found) != 1:
        raise FetchError(f"{deb.name}: {pattern} matches {len(found)} files")
    return found[0]


def unpack_whole(debs: list[Path], pattern: str, root: Path) -> Path:
    """Unpacks packages into `root`, with Debian's links into usr; returns the one regular file that matches `pattern`."""
    for deb in debs:
        subprocess.run(["dpkg-deb", "--extract", deb, root], check=True)
    for name in ("bin", "lib", "lib64"):
        if (root / "usr" / name).is_dir() and not (root / name).exists():
            (root / name).symlink_to(f"usr/{name}")
    found = [file for file in root.glob(pattern) if file.is_file() and not file.is_symlink()]
    if len(found) != 1:
        raise FetchError(f"{pattern} matches {len(found)} files")
    return found[0]


def fetch(entry: Entry, directory: Path) -> Locked:
    """Makes `directory` hold the entry's file and nothing else; returns what the lock file says of it."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f".{directory.name}.") as scratch:
        suite = ":".join(entry[field] for field in ("suite", "architecture") if field in entry)
        [deb] = download([entry["package"]], suite, Path(scratch, "deb"))
        version = subprocess.check_output(["dpkg-deb", "--field", deb, "Version"], text=True).strip()
        new = Path(scratch, "new")
        new.mkdir()
        if entry.get("libraries"):
            libraries = download(libraries_of(entry["package"], suite), suite, Path(scratch, "debs"))
            file = unpack_whole([deb, *libraries], entry["member"], new / "root")
        else:
            file = unpack_member(deb, entry["member"], new)
        locked = {
            "package": entry["package"],
            "version": version,
            "package_sha256": sha256_of(deb),
            "sha256": sha256_of(file),
            "file": str(directory.name / file.relative_to(new)),
        }
        shutil.rmtree(directory, ignore_errors=True)
        new.rename(directory)
    return locked | ({"root": f"{directory.name}/root"} if entry.get("libraries") else {})


def is_present(entry: Entry, locked: Locked | None, corpus: Path) -> bool:
    if locked is None or ("root" in locked) != entry.get("libraries", False):
        return False
    file = corpus / locked["file"]
    return file.is_file() and sha256_of(file) == locked["sha256"]


def differences(entry: Entry, locked: Locked) -> list[str]:
    """What is not as the manifest recorded it; what it did not record cannot differ."""
    return [
        f"{field} {locked[field]}, recorded was {entry[field]}"
        for field in ("version", "package_sha256", "sha256")
        if entry.get(field, locked[field]) != locked[field]
    ]


def write_atomically(path: Path, text: str) -> None:
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    new.rename(path)


def main() -> int:
    manifest: dict[str, Entry] = tomllib.loads(MANIFEST.read_text())
    parser = argparse.ArgumentParser(prog="python -m corpus.fetch", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(manifest))
    names = parser.parse_args().names or [name for name, entry in manifest.items() if not entry.get("large")]
    if unknown := [name for name in names if name not in manifest]:
        parser.error(f"not in the manifest: {', '.join(unknown)}; it has {', '.join(manifest)}")

    corpus = cache_directory() / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    failed = False
    with (corpus / "lock").open("w") as running:
        fcntl.flock(running, fcntl.LOCK_EX)
        lock_file = corpus / "lock.json"
        lock: dict[str, Locked] = json.loads(lock_file.read_text()) if lock_file.exists() else {}
        for name in names:
            try:
                if not is_present(manifest[name], lock.get(name), corpus):
                    lock[name] = fetch(manifest[name], corpus / name)
                    write_atomically(lock_file, json.dumps(lock, indent=2, sort_keys=True) + "\n")
            except (FetchError, OSError, subprocess.CalledProcessError, tarfile.TarError) as error:
                print(f"corpus/fetch: {name}: {error}", file=sys.stderr)
                failed = True
                continue
            print(name, lock[name]["version"], corpus / lock[name]["file"])
            if changed := differences(manifest[name], lock[name]):
                print(f"corpus/fetch: {name} is not as recorded: {'; '.join(changed)}", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
