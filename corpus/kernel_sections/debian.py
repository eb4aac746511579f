"""Debian's newest modules and their debug files: fetched once, and kept in the cache."""

from __future__ import annotations

import re
import subprocess
import tempfile
from typing import TYPE_CHECKING, NamedTuple

from corpus.fetch.__main__ import FetchError, cache_directory, download
from corpus.kernels.debian_kernels import dependencies

if TYPE_CHECKING:
    from pathlib import Path


class Flavour(NamedTuple):
    """Of a kernel, as the names of packages end."""

    name: str
    architecture: str

    @property
    def place(self) -> str:
        """As tools/apt-suite takes it."""
        return f"sid:{self.architecture}"


FLAVOURS = {flavour.name: flavour for flavour in (Flavour("cloud-arm64", "arm64"), Flavour("s390x", "s390x"))}


def fetched(flavour: Flavour) -> Path:
    """Return the folder with the newest modules and debug files, unpacked. Raises FetchError, CalledProcessError."""
    names = dependencies(f"linux-image-{flavour.name}-dbg", flavour.place)
    debug = next((name for name in names if re.fullmatch(r"linux-image-\d.*-dbg", name)), None)
    if debug is None:
        raise FetchError(f"linux-image-{flavour.name}-dbg depends on no debug files")
    modules = debug.replace("image", "modules", 1).removesuffix("-dbg")
    folder = cache_directory() / "kernel_sections" / modules
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            new = folder.parent / scratch / "new"
            for deb in download([modules, debug], flavour.place, folder.parent / scratch / "debs"):
                subprocess.run(["dpkg-deb", "--extract", deb, new], check=True)
            new.rename(folder)
    return folder
