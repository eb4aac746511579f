"""Images made with umoci: one layer for each step that changes a directory."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Step = Callable[[Path], None]  # changes the root directory

TAG = "tried"
SOURCES = ("sources.list.d/debian.sources", "sources.list.d/ubuntu.sources", "sources.list")
BASE = ("bash", "coreutils")
MORE = ("python3-minimal", "perl", "sqlite3", "curl", "git", "redis-server", "xz-utils", "openssl", "file")


def run(*command: str | Path) -> str:
    """What a command prints. Raises subprocess.CalledProcessError."""
    done = subprocess.run(
        [str(part) for part in command],
        check=True,
        text=True,
        errors="replace",
        capture_output=True,
    )
    return done.stdout


def make_layout(layout: Path, scratch: Path, steps: Sequence[Step]) -> None:
    """An OCI layout whose image has a layer for each step, as umoci packs what the step changed."""
    image = f"{layout}:{TAG}"
    run("umoci", "init", "--layout", layout)
    run("umoci", "new", "--image", image)
    run("umoci", "unpack", "--image", image, scratch / "bundle")
    for step in steps:
        step(scratch / "bundle/rootfs")
        run("umoci", "repack", "--refresh-bundle", "--image", image, scratch / "bundle")
    shutil.rmtree(scratch / "bundle")


def debian(folder: Path) -> list[Step]:
    """Four layers: a small Debian, more packages, names removed and linked, programs exchanged.

    `folder`: keeps what mmdebstrap makes.
    """
    base, full = (debian_root(folder, name, packages) for name, packages in (("base", BASE), ("full", BASE + MORE)))
    return [base, full, removed_and_linked, exchanged]


def debian_root(folder: Path, name: str, packages: tuple[str, ...]) -> Step:
    """Makes the root directory one of Debian with these packages, from where the machine's own come from."""
    archive = folder / f"{name}.tar"

    def step(root: Path) -> None:
        if not archive.exists():
            sources = next(Path("/etc/apt", one) for one in SOURCES if Path("/etc/apt", one).exists())
            suite = run("sh", "-c", ". /etc/os-release; echo $VERSION_CODENAME").strip()
            included = "--include=" + ",".join(packages)
            run("mmdebstrap", "--quiet", "--variant=essential", included, suite, archive, sources)
        new = root.parent / name
        new.mkdir()
        run("tar", "-x", "-p", "--numeric-owner", "--xattrs", "--xattrs-include=*", "-f", archive, "-C", new)
        run("rsync", "-aHAX", "--delete", f"{new}/", f"{root}/")
        shutil.rmtree(new)

    return step


def removed_and_linked(root: Path) -> None:
    """Whiteouts, hard links, a directory in the place of which comes a link."""
    for name in ("usr/share/doc", "usr/share/man"):
        shutil.rmtree(root / name)
    (root / "usr/local/bin/perl").hardlink_to(root / "usr/bin/perl")
    (root / "usr/local/bin/again").hardlink_to(root / "usr/bin/sqlite3")
    (root / "usr/games").rmdir()
    (root / "usr/games").symlink_to("bin")
    (root / "usr/bin/redis-benchmark").unlink()


def exchanged(root: Path) -> None:
    """A program that a later layer has again, one under another name, and a name that comes back."""
    copied = root / "usr/bin/sha256sum"
    data, status = copied.read_bytes(), copied.stat()
    copied.unlink()
    copied.write_bytes(data)
    copied.chmod(status.st_mode & 0o7777)
    (root / "usr/bin/sort").rename(root / "usr/bin/sorted")
    (root / "usr/bin/sort").symlink_to("sorted")
    (root / "usr/share/doc").mkdir()
