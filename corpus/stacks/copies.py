"""Copies of programs and libraries with an SFrame section, in the place of the originals for one process alone.

The process is in a mount namespace of its own, where the copies are mounted over the originals: it runs with the same names, and
who is not in that namespace sees the originals by them.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from sframegen import SframegenError, add_section
from sframegen.elf.file import open_elf
from sframegen.elf.records import PT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CFI = (".eh_frame", ".eh_frame_hdr", ".debug_frame")
NAMESPACE = ("unshare", *(() if os.geteuid() == 0 else ("--map-root-user",)), "--mount", "--propagation", "private")
NEEDED = re.compile(r"(?:=> )?(/\S+) \(0x")


class Copies:
    """In a folder; each original is copied once."""

    def __init__(self, folder: Path, *, without_cfi: bool) -> None:
        """`without_cfi`: what the sections were made from is zeroes in the copies."""
        self.folder, self.without_cfi = folder, without_cfi
        self.made: dict[Path, Path] = {}
        self.refused: dict[Path, str] = {}  # without a section, and why
        folder.mkdir(parents=True)

    def of(self, program: Path, more: Iterable[Path] = ()) -> dict[Path, Path]:
        """The copies of a program, of what it loads, and of what it may load later: by original."""
        originals = {file for one in (program, *more) for file in (one.resolve(), *needed(one))}
        return {original: copy for original in sorted(originals) if (copy := self._copy(original))}

    def command(self, copies: dict[Path, Path], command: Sequence[str | Path]) -> list[str]:
        """Runs a command with them; the process is the one that this begins as."""
        mounts = [f"mount --bind {shlex.quote(str(copy))} {shlex.quote(str(file))}" for file, copy in copies.items()]
        return [*NAMESPACE, "sh", "-c", " && ".join([*mounts, 'exec "$@"']), "sh", *map(str, command)]

    def _copy(self, original: Path) -> Path | None:
        if original not in self.made and (self.without_cfi or original not in self.refused):
            copy = self.folder / f"{len(self.made)}-{original.name}"
            try:
                add_section(original, output=copy, verify=False)
            except SframegenError as error:
                self.refused[original] = str(error)
                if not self.without_cfi:
                    return None
                shutil.copyfile(original, copy)
            shutil.copymode(original, copy)
            if self.without_cfi:
                erase_cfi(copy)
            self.made[original] = copy
        return self.made.get(original)


def can_mount() -> bool:
    """True if this machine lets us."""
    return (
        shutil.which(NAMESPACE[0]) is not None
        and subprocess.run([*NAMESPACE, "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0
    )


def needed(file: Path) -> list[Path]:
    """What ld.so loads for it, itself included."""
    listed = subprocess.run(["ldd", file], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout
    return [Path(path).resolve() for path in NEEDED.findall(listed)]


def erase_cfi(file: Path) -> None:
    elf = open_elf(file)
    places = [(section.header.sh_offset, section.header.sh_size) for section in elf.sections if section.name in CFI]
    places += [(segment.p_offset, segment.p_filesz) for segment in elf.segments if segment.p_type == PT.GNU_EH_FRAME]
    with file.open("r+b") as stream:
        for offset, size in places:
            stream.seek(offset)
            stream.write(bytes(size))
