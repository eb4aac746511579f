"""The file system that a kernel unpacks into memory: userland, sframegen, a program with known stacks, and /init."""

from __future__ import annotations

import os
import stat
import subprocess
from importlib.metadata import distribution
from pathlib import Path

from corpus.kernels.debian_kernels import fetch_userland

HERE = Path(__file__).parent
COMPILERS = {"amd64": "x86_64-linux-gnu-gcc", "arm64": "aarch64-linux-gnu-gcc"}
FLAGS = {"amd64": (), "arm64": ("-mbranch-protection=standard",)}
SITE = "site"
DISTRIBUTIONS = ("sframegen", "click", "pyelftools")
KEPT = (".py", ".o", "METADATA", ".toml", ".json")
INIT = f"""#!/usr/bin/python3.13
import os, sys
os.environ.update(PYTHONPATH="/{SITE}", HOME="/root", PATH="/usr/bin:/usr/sbin")
sys.path[:0] = ["/", "/{SITE}"]
import in_guest
in_guest.main()
"""
CONSOLE = (5, 1)  # major and minor number: the kernel opens it before /dev is mounted
FOLDERS = ("dev", "proc", "sys", "tmp", "root")


class Archive:
    """A cpio archive as the kernel reads it ("newc"): devices need no root, as nothing of it is in a file system here."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._number = 0

    def add(self, name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0)) -> None:
        self._number += 1
        encoded = name.encode() + b"\0"
        fields = (self._number, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(encoded), 0)
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + encoded
        self.parts += [head, bytes(-len(head) % 4), data, bytes(-len(data) % 4)]

    def add_file(self, name: str, path: Path) -> None:
        self.add(name, path.lstat().st_mode, path.read_bytes())

    def add_tree(self, root: Path) -> None:
        for folder, names, files in os.walk(root):
            for name in sorted((*names, *files)):
                path = Path(folder, name)
                inside = str(path.relative_to(root))
                if path.is_symlink():
                    self.add(inside, path.lstat().st_mode, str(path.readlink()).encode())
                elif path.is_dir():
                    self.add(inside, stat.S_IFDIR | 0o755)
                elif path.is_file():
                    self.add_file(inside, path)

    def write(self, path: Path) -> None:
        self.add("TRAILER!!!", 0)
        path.write_bytes(b"".join(self.parts))


def compile_program(architecture: str, output: Path) -> None:
    """Raises OSError, CalledProcessError."""
    command = [COMPILERS[architecture], "-O2", *FLAGS[architecture], "-o", str(output), str(HERE / "known_stacks.c")]
    subprocess.run(command, check=True)


def add_packages(archive: Archive) -> None:
    """The installed packages as plain Python: what is compiled here is for this machine's Python."""
    chosen: dict[str, Path] = {}
    for name in DISTRIBUTIONS:
        installed = distribution(name)
        for top in sorted({file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}):
            place = Path(str(installed.locate_file(top)))
            # Not the list of what was installed: modules may have been exchanged since.
            chosen |= {str(path.relative_to(place.parent)): path for path in place.rglob("*") if path.name.endswith(KEPT)}
    for folder in sorted({str(parent) for inside in chosen for parent in Path(SITE, inside).parents} - {"."}):
        archive.add(folder, stat.S_IFDIR | 0o755)
    for inside, path in sorted(chosen.items()):
        archive.add_file(f"{SITE}/{inside}", path)


def make_initramfs(architecture: str, folder: Path) -> Path:
    """Write the archive into a folder. Raises FetchError, OSError, CalledProcessError."""
    program = folder / f"known_stacks-{architecture}"
    compile_program(architecture, program)
    archive = Archive()
    for name in FOLDERS:
        archive.add(name, stat.S_IFDIR | 0o755)
    archive.add("dev/console", stat.S_IFCHR | 0o600, device=CONSOLE)
    archive.add_tree(fetch_userland(architecture))
    add_packages(archive)
    archive.add_file("known_stacks", program)
    archive.add_file("in_guest.py", HERE / "in_guest.py")
    archive.add("init", stat.S_IFREG | 0o755, INIT.encode())
    made = folder / f"initramfs-{architecture}"
    archive.write(made)
    return made
