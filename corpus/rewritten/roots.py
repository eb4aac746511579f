"""A root file system of Debian packages, in which the rewritten ones are installed and run."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

from tests.support.peers import cache_directory

from .obtaining import APT_SUITE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ENVIRONMENT = ("env", "-i", "PATH=/usr/sbin:/usr/bin", "HOME=/root", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive")


class Root:
    def __init__(self, directory: Path, suite: str, packages: Sequence[str]) -> None:
        """Make one with mmdebstrap. Needs root. Raises CalledProcessError."""
        self.directory = directory
        subprocess.run([APT_SUITE, suite, "apt-cache", "stats"], check=True, stdout=subprocess.DEVNULL)  # its lists are there
        sources = (cache_directory() / "apt" / suite / "sources.list").read_text()
        include = f"--include={','.join([*packages, 'netbase', 'libpython3.13-stdlib'])}"
        command: list[str | Path] = ["mmdebstrap", "--mode=root", "--quiet", "--variant=minbase", include, suite, directory, "-"]
        subprocess.run(command, check=True, text=True, input=sources)
        files = (path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
        # As the packages' scripts leave them.
        self.modes = {path.relative_to(directory).as_posix(): path.stat().st_mode for path in files}

    def run(self, command: str) -> str:
        """What a shell in the root prints; its exit status is a last line of it."""
        inside = [
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            f"--root={self.directory}",
            "--mount-proc",
            *ENVIRONMENT,
            "sh",
            "-c",
            command,
        ]
        done = subprocess.run(
            inside,
            check=False,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return f"{done.stdout}exit status {done.returncode}\n"

    def install(self, debs: Sequence[Path], command: str) -> str:
        """Put the packages into the root, and run `command DEB...` there."""
        place = self.directory / "debs"
        place.mkdir()
        for deb in debs:
            shutil.copy(deb, place / deb.name)
        said = self.run(f"{command} /debs/*.deb")
        shutil.rmtree(place)
        return said

    def verified(self) -> str:
        """What `dpkg -V` and debsums find; nothing where all is well."""
        said = self.run("dpkg -V; dpkg --audit; apt-get -qq check")
        debsums = subprocess.run(["debsums", "-s", f"--root={self.directory}"], check=False, text=True, capture_output=True)
        return said.removesuffix("exit status 0\n") + debsums.stdout + debsums.stderr
