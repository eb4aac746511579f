"""Linked files of Debian packages that a seed draws, for each of sframegen's machines."""

from __future__ import annotations

import random
import subprocess
from typing import TYPE_CHECKING

from corpus.fetch.__main__ import APT_SUITE, FetchError
from corpus.linked_files import linked_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SUITE, ARCHITECTURES = "sid", ("amd64", "arm64", "s390x")
PACKAGES = 90  # of each architecture
PACKAGE_BYTES = range(50_000, 6_000_000)


def drawn_files(count: int, seed: int, directory: Path) -> Iterator[Path]:
    """Yield `count` files of each architecture, unpacked below a directory. Raises FetchError, CalledProcessError."""
    for architecture in ARCHITECTURES:
        chance = random.Random(f"{seed} {architecture}")  # noqa: S311 - the same draw at each run is what it is for
        names = sorted(_names(architecture))
        packages = directory / architecture
        packages.mkdir()
        download: list[str | Path] = [APT_SUITE, f"{SUITE}:{architecture}", "apt-get", "--quiet=2", "download"]
        # It fails after it has got all others if the archive has a newer version of one.
        subprocess.run([*download, *chance.sample(names, PACKAGES)], cwd=packages, check=False, capture_output=True)
        for package in packages.glob("*.deb"):
            subprocess.run(["dpkg-deb", "--extract", package, package.with_suffix("")], check=True)
            package.unlink()
        files = [*linked_files([packages])]
        if len(files) < count:
            raise FetchError(f"{architecture}: {len(files)} files were fetched, not {count}")
        yield from sorted(chance.sample(files, count))


def _names(architecture: str) -> Iterator[str]:
    command: list[str | Path] = [APT_SUITE, f"{SUITE}:{architecture}", "apt-cache", "dumpavail"]
    for paragraph in subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and not line.startswith(" "))
        if fields.get("Architecture") == architecture and int(fields["Size"]) in PACKAGE_BYTES:
            yield fields["Package"]
