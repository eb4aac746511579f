"""What each format's own tools, or an independent reading, say of a package. Each function gives a line for each finding."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import subprocess
import tarfile
import zlib
from typing import TYPE_CHECKING

from .building import TAG, tools

if TYPE_CHECKING:
    from pathlib import Path

TRIAL = "rattler_trial.py"
MTREE_LINE = re.compile(r"^\./(\S+) .*?size=(\d+) .*?sha256digest=([0-9a-f]{64})", re.MULTILINE)
CONFIG = "[options]\nArchitecture = auto\nSigLevel = Never\nLocalFileSigLevel = Never\n"


def by_pacman(package: Path, scratch: Path) -> list[str]:
    """Install, verify, compare with .MTREE, and remove."""
    root = scratch / "root"
    database = root / "var/lib/pacman"
    database.mkdir(parents=True)
    (scratch / "pacman.conf").write_text(CONFIG)
    pacman: list[str | Path] = ["pacman", "--config", scratch / "pacman.conf", "--root", root, "--dbpath", database, "--noconfirm"]
    found = []
    steps = (("-Udd", "--noscriptlet", ""), ("-Qkk", "", " 0 altered files"), ("mtree", "", ""), ("-Rdd", "--noscriptlet", ""))
    for step, option, expected in steps:
        if step == "mtree":
            found += _mtree_findings(package, root)
            continue
        name = package.name.rsplit("-", 3)[0]
        command = [*pacman, step, *option.split(), package if step == "-Udd" else name]
        ran = subprocess.run(command, check=False, capture_output=True, text=True)
        if ran.returncode or expected not in ran.stdout:
            found.append(f"pacman {step}: {(ran.stdout + ran.stderr)[-200:]}")
    left = [file for file in root.rglob("*") if not file.is_dir() and database not in file.parents and file.name != "pacman.log"]
    return found + [f"pacman -R leaves {file.relative_to(root)}" for file in left]


def _mtree_findings(package: Path, root: Path) -> list[str]:
    packed = subprocess.run(["bsdtar", "-xOf", package, ".MTREE"], check=True, capture_output=True).stdout
    found = []
    for name, size, digest in MTREE_LINE.findall(gzip.decompress(packed).decode()):
        path = re.sub(r"\\(\d{3})", lambda code: bytes([int(code[1], 8)]).decode("latin-1"), name).encode("latin-1").decode()
        if path.startswith("."):
            data = subprocess.run(["bsdtar", "-xOf", package, path], check=True, capture_output=True).stdout
        else:
            data = (root / path).read_bytes()
        if (str(len(data)), hashlib.sha256(data).hexdigest()) != (size, digest):
            found.append(f".MTREE: {path}: another size or checksum")
    return found


def by_conda(package: Path, scratch: Path) -> list[str]:
    """Unpack with cph; install, verify and remove with rattler."""
    unpacked = scratch / "unpacked"
    subprocess.run(
        [tools() / "python", "-m", "conda_package_handling", "extract", package, "--dest", unpacked],
        check=True,
        capture_output=True,
    )
    trial: list[str | Path] = [
        tools() / "python",
        __file__.replace("judging.py", TRIAL),
        unpacked / "info/index.json",
        package,
        scratch / "prefix",
    ]
    ran = subprocess.run(trial, check=False, capture_output=True, text=True)
    *found, last = ran.stdout.splitlines() or [""]
    return found + [f"rattler: {ran.stderr[-300:]}"] * (last != "done")


def by_reading_apk(package: Path, _scratch: Path) -> list[str]:
    """apk-tools are not in Debian: gzip, tarfile and hashlib read what they would verify."""
    data, parts, found = package.read_bytes(), list[tuple[bytes, bytes]](), list[str]()
    while data:
        stream = zlib.decompressobj(wbits=31)
        plain = stream.decompress(data)
        parts.append((data[: len(data) - len(stream.unused_data)], plain))
        data = stream.unused_data
    (_, control), (packed, files) = parts
    with tarfile.open(fileobj=io.BytesIO(control)) as archive:
        about = (archive.extractfile(".PKGINFO") or io.BytesIO()).read().decode()
    if f"datahash = {hashlib.sha256(packed).hexdigest()}" not in about:
        found.append("datahash is another one")
    size = 0
    with tarfile.open(fileobj=io.BytesIO(files)) as archive:
        for info in archive:
            contents = (archive.extractfile(info) or io.BytesIO()).read() if info.isreg() else b""
            size += len(contents)
            if (
                info.isreg()
                and info.pax_headers["APK-TOOLS.checksum.SHA1"] != hashlib.sha1(contents, usedforsecurity=False).hexdigest()
            ):
                found.append(f"{info.name}: another checksum in its header")
    if f"size = {size}\n" not in about:
        found.append(f"{size:,} bytes, another size in .PKGINFO")
    return found


def by_skopeo(layout: Path, scratch: Path) -> list[str]:
    """Copied, which verifies each digest; the copy unpacked by umoci."""
    copy = scratch / "copy"
    commands: tuple[list[str | Path], ...] = (
        ["skopeo", "copy", "--quiet", f"oci:{layout}:{TAG}", f"oci:{copy}:{TAG}"],
        ["umoci", "unpack", "--image", f"{copy}:{TAG}", scratch / "bundle"],
    )
    ran = [subprocess.run(command, check=False, capture_output=True, text=True) for command in commands]
    return [f"{command[0]}: {one.stderr[-200:]}" for command, one in zip(commands, ran, strict=True) if one.returncode]
