"""Debian packages: their entries and what lintian says, before and after."""

from __future__ import annotations

import hashlib
import io
import re
import subprocess
import tarfile
from typing import TYPE_CHECKING

from .rewriting import given_back

if TYPE_CHECKING:
    from pathlib import Path

    from .rewriting import Rewritten

INSTALLED_SIZE = re.compile(rb"^Installed-Size: \d+$", re.MULTILINE)


def entries(deb: Path, which: str) -> list[tuple[tarfile.TarInfo, bytes]]:
    """All entries of a part of the package, `--ctrl-tarfile` or `--fsys-tarfile`, as dpkg-deb unpacks it."""
    raw = subprocess.run(["dpkg-deb", which, deb], check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        return [(info, file.read() if (file := tar.extractfile(info) if info.isreg() else None) else b"") for info in tar]


def members(deb: Path) -> list[tuple[bytes, bytes]]:
    """Headers of an `ar` archive without the sizes, each with the beginning of the contents."""
    data, at, found = deb.read_bytes(), 8, []
    while at < len(data):
        found.append((data[at : at + 48], data[at + 60 : at + 66]))
        at += 60 + int(data[at + 48 : at + 58])
        at += at % 2
    return found


def metadata(info: tarfile.TarInfo) -> tuple[object, ...]:
    """All that is known of an entry except its size."""
    return info.name, info.type, info.mode, info.uid, info.gid, info.uname, info.gname, info.mtime, info.linkname


def compared(one: Rewritten, scratch: Path) -> None:
    """Notes every difference of the new package that is none of sections, checksums and the installed size."""
    _members(one)
    old_files, new_files = (entries(deb, "--fsys-tarfile") for deb in (one.before, one.after))
    back = entries(given_back(one, scratch / "back"), "--fsys-tarfile")
    changed = 0
    for (old, contents), (new, new_contents), (_, restored) in zip(old_files, new_files, back, strict=True):
        if metadata(old) != metadata(new):
            one.differences.append(f"{old.name}: another entry: {metadata(old)}, {metadata(new)}")
        changed += contents != new_contents
        if contents != new_contents and not contents.startswith(b"\x7fELF"):
            one.differences.append(f"{old.name}: changed, and no ELF file")
        if contents != restored:
            one.differences.append(f"{old.name}: other bytes after `sframegen remove`")
    if changed != one.sections:
        one.differences.append(f"{changed} files have changed, {one.sections} are reported")
    files = {info.name.removeprefix("./"): contents for info, contents in new_files}
    links = {info.name: info.linkname for info, _ in new_files if info.islnk()}
    _control(one, files | {name.removeprefix("./"): files[to.removeprefix("./")] for name, to in links.items()})
    _lintian(one)


def _members(one: Rewritten) -> None:
    """The `ar` archive: the same members, and the same compression of each."""
    for old, new in zip(members(one.before), members(one.after), strict=True):
        if old != new:
            one.differences.append(f"another member, or other compression: {new}, was {old}")


def _control(one: Rewritten, files: dict[str, bytes]) -> None:
    old, new = (entries(deb, "--ctrl-tarfile") for deb in (one.before, one.after))
    for (info, contents), (new_info, new_contents) in zip(old, new, strict=True):
        if metadata(info) != metadata(new_info):
            one.differences.append(f"control: {info.name}: another entry")
        if info.name == "./control":
            contents, new_contents = (INSTALLED_SIZE.sub(b"", text) for text in (contents, new_contents))  # noqa: PLW2901
        if info.name == "./md5sums":
            sums = (line.split("  ", 1) for line in new_contents.decode().splitlines())
            wrong = [path for digest, path in sums if hashlib.md5(files[path], usedforsecurity=False).hexdigest() != digest]
            one.differences += [f"md5sums: {path}: another sum than the file's" for path in wrong]
        elif contents != new_contents:
            one.differences.append(f"control: {info.name}: changed")


def _lintian(one: Rewritten) -> None:
    old, new = (
        subprocess.run(
            ["lintian", "--allow-root", "--tag-display-limit", "0", deb], check=False, text=True, stdout=subprocess.PIPE
        ).stdout.splitlines()
        for deb in (one.before, one.after)
    )
    one.differences += [f"lintian: {line}" for line in new if line not in old]
