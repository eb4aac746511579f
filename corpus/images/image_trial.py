"""One image with sections beside the same without: files, programs, packages, tools."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from corpus.images.layered import TAG, run

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAMS: dict[str, str] = tomllib.loads(Path(__file__).with_name("programs.toml").read_text())


class Seen(NamedTuple):
    """What one file of an image is. Links to one file have the same first name."""

    mode: int  # with the kind of the file
    owner: tuple[int, int]
    modified: int  # nanoseconds
    attributes: tuple[tuple[str, bytes], ...]
    link: str  # the target of a symbolic link, or the first of the names that are hard links of it
    digest: str  # of a regular file


class Trial(NamedTuple):
    """What was seen of one image in one format. Sizes are in bytes."""

    name: str
    layers: tuple[int, ...]  # sizes before; those in archives are not compressed
    new_layer: int
    elf_files: int
    given: int
    refused: tuple[str, ...]
    bytes_before: int
    bytes_after: int
    seconds: float
    programs: int  # that print what they printed before
    packaged: int  # files of Debian packages that dpkg -V says are changed, all of which were given a section
    checked: int  # files whose section `sframegen check` accepts
    entries: int  # names in the unpacked image
    faults: tuple[str, ...]


def try_layout(layout: Path, scratch: Path, programs: dict[str, str]) -> Iterator[Trial]:
    """Add sections to copies of an image in each format; judge them with skopeo, umoci, dpkg, and the image's own programs."""
    run("umoci", "unpack", "--image", f"{layout}:{TAG}", scratch / "plain")
    plain = Plain(scratch / "plain/rootfs", programs)
    for transport in ("oci", "oci-archive", "docker-archive"):
        place = scratch / f"{transport}.image"
        tag = TAG if transport != "docker-archive" else f"example.org/{TAG}:1"
        run("skopeo", "copy", "--quiet", f"oci:{layout}:{TAG}", f"{transport}:{place}:{tag}")
        yield try_format(transport, place, f"{transport}:{place}", plain, scratch)
        shutil.rmtree(place) if place.is_dir() else place.unlink()
    shutil.rmtree(scratch / "plain")


class Plain:
    """The unpacked image without sections: its files, and what its programs print."""

    def __init__(self, root: Path, programs: dict[str, str]) -> None:
        self.root, self.programs = root, programs
        self.files = dict(tree(root))
        self.printed = {name: output(root, text) for name, text in programs.items()}
        self.packages = packages_changed(root)
        self._good: set[str] = set()  # digests of files with sections

    def accepted(self, root: Path, digests: dict[str, str]) -> list[str]:
        """The files whose section `sframegen check` accepts; those of equal digests are checked once."""
        new = [path for path, digest in digests.items() if digest not in self._good]
        if new and not check(root, new):
            new = [path for path in new if check(root, [path])]
        self._good |= {digests[path] for path in new}
        return [path for path, digest in digests.items() if digest in self._good]


def try_format(name: str, place: Path, reference: str, plain: Plain, scratch: Path) -> Trial:
    layers = layer_sizes(reference)
    started = time.monotonic()
    summary = add_section(place)
    seconds = time.monotonic() - started
    package, digest = summary["package"], content_of(place)
    faults = ["a second run changes it"] if add_section(place)["package"]["changed"] or content_of(place) != digest else []
    new = layer_sizes(reference)
    if new[:-1] != layers:
        faults.append(f"the layers are {new}, and were {layers}")

    run("skopeo", "copy", "--quiet", reference, f"oci:{scratch / 'copy'}:{TAG}")
    run("umoci", "unpack", "--image", f"{scratch / 'copy'}:{TAG}", scratch / "unpacked")
    root = scratch / "unpacked/rootfs"
    files = dict(tree(root))
    changed = {path for path in files.keys() & plain.files if files[path].digest != plain.files[path].digest}
    faults += differences(plain.files, files, changed)
    given = {file["file"] for file in package["files"] if file["plan"]}
    if {files[path].link for path in changed} != {files[path].link for path in given}:
        faults.append(f"other files are changed than those with sections: {sorted(changed ^ given)[:5]}")
    now = {program: output(root, text) for program, text in plain.programs.items()}
    wrong = [program for program, text in now.items() if text != plain.printed[program]]
    faults += [f"{program} prints something else: {now[program][-200:]!r}" for program in wrong]
    verified = packages_changed(root) - plain.packages
    if not led_to(root, verified) <= {f"/{path}" for path in changed}:
        faults.append(f"dpkg -V names other files: {sorted(verified)[:5]}")
    checked = plain.accepted(root, {path: files[path].digest for path in sorted(given)})
    faults += [f"check does not accept {path}" for path in sorted(given - set(checked))]
    shutil.rmtree(scratch / "copy")
    shutil.rmtree(scratch / "unpacked")
    return Trial(
        name=name,
        layers=tuple(layers),
        new_layer=new[-1],
        elf_files=package["elf_files"],
        given=package["changed"],
        refused=tuple(summary["warnings"]),
        bytes_before=package["size_before"],
        bytes_after=package["size"],
        seconds=seconds,
        programs=len(now) - len(wrong),
        packaged=len(verified),
        checked=len(checked),
        entries=len(files),
        faults=tuple(faults),
    )


def sframegen(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "sframegen", *arguments]
    return subprocess.run(command, check=False, text=True, capture_output=True)


def check(root: Path, paths: list[str]) -> bool:
    return not sframegen("check", "--no-second-reader", *(str(root / path) for path in paths)).returncode


def add_section(place: Path) -> dict[str, Any]:
    """Add sections in place; return the object that --json prints for the image."""
    done = sframegen("add-section", "--json", str(place))
    if done.returncode:
        raise RuntimeError(done.stderr)
    [result] = json.loads(done.stdout)
    return dict(result)


def output(root: Path, text: str) -> str:
    """What a shell script prints in a container with the image as its root directory, and nothing else of this machine."""
    container = ["bwrap", "--ro-bind", str(root), "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--chdir", "/tmp"]  # noqa: S108
    alone = [
        "--unshare-all",
        "--die-with-parent",
        "--clearenv",
        "--setenv",
        "PATH",
        "/usr/bin:/bin:/usr/sbin:/sbin",
        "--",
        "bash",
        "-c",
    ]
    done = subprocess.run([*container, *alone, text], check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
    return f"{done.stdout.decode(errors='replace')}[{done.returncode}]"


def tree(root: Path) -> Iterator[tuple[str, Seen]]:
    """All names below a directory, with what they lead to."""
    first: dict[int, str] = {}
    for directory, directories, names in os.walk(root):
        directories.sort()
        for name in sorted(directories + names):
            path = Path(directory, name)
            status, relative = path.lstat(), str(path.relative_to(root))
            is_link, is_file = stat.S_ISLNK(status.st_mode), stat.S_ISREG(status.st_mode)
            keys = sorted(os.listxattr(path, follow_symlinks=False))
            seen = Seen(
                status.st_mode,
                (status.st_uid, status.st_gid),
                status.st_mtime_ns,
                tuple((key, os.getxattr(path, key, follow_symlinks=False)) for key in keys),
                str(path.readlink()) if is_link else first.setdefault(status.st_ino, relative) if is_file else "",
                hashlib.sha256(path.read_bytes()).hexdigest() if is_file else "",
            )
            yield relative, seen


def differences(before: dict[str, Seen], after: dict[str, Seen], changed: set[str]) -> list[str]:
    """What differs besides the contents of changed files."""
    faults = [f"there is no {path} any more" for path in sorted(before.keys() - after)]
    faults += [f"{path} is new" for path in sorted(after.keys() - before)]
    for path in sorted(before.keys() & after):
        old, new = before[path], after[path]
        if new._replace(digest=old.digest if path in changed else new.digest) != old:
            faults.append(f"{path}: {[(a, b) for a, b in zip(old, new, strict=True) if a != b]}")
    return faults


def packages_changed(root: Path) -> set[str]:
    """The lines of `dpkg -V`; none where there is no dpkg."""
    return set(output(root, "command -v dpkg > /dev/null && dpkg -V").splitlines()[:-1])


def led_to(root: Path, lines: set[str]) -> set[str]:
    """The files that lines of `dpkg -V` name, without links in their paths."""
    paths = " ".join(line.split()[-1] for line in lines)
    return set(output(root, f"readlink -f {paths}").splitlines()[:-1]) if paths else set()


def layer_sizes(reference: str) -> list[int]:
    """As skopeo sees them."""
    return [layer["size"] for layer in json.loads(run("skopeo", "inspect", "--raw", reference))["layers"]]


def content_of(place: Path) -> str:
    """A digest that changes if the image does."""
    return hashlib.sha256((place / "index.json" if place.is_dir() else place).read_bytes()).hexdigest()
