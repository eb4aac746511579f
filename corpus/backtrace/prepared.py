"""Copies with sections of a program and of all that it loads: the system's own files do not change."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from linker.files.refusals import RefusedError
from sframegen import add_section

PROGRAMS = Path(__file__).with_name("programs")
LOADER = "ld-linux"


class Copies:
    """A directory of programs and one of libraries, each with a section."""

    def __init__(self, folder: Path) -> None:
        self.programs, self.libraries = folder / "programs", folder / "libraries"
        for made in (self.programs, self.libraries):
            made.mkdir(parents=True)

    def program(self, path: str | Path) -> Path:
        """Copy a program and its libraries, and return its copy."""
        self.library(path)
        copy = self.programs / Path(path).name
        return Path(shutil.move(self.libraries / Path(path).name, copy))

    def library(self, path: str | Path) -> Path:
        """Copy a library and those that it loads, and return its copy."""
        for needed in self._loaded(str(path)):
            self._add(needed)
        return self._add(str(path))

    def compiled(self, source: str, *flags: str) -> Path:
        """Compile a program of C++, and return it with a section."""
        output = self.programs / Path(source).stem
        subprocess.run(["g++", "-O2", "-o", output, PROGRAMS / source, *flags], check=True)
        return self.program(output)

    def tree(self, folder: Path) -> None:
        """Give all shared objects in a folder a section, in place."""
        for path in sorted(folder.rglob("*.so*")):
            if path.is_file() and not path.is_symlink():
                for needed in self._loaded(str(path)):
                    self._add(needed)
                add_section(path)

    def _loaded(self, path: str) -> list[str]:
        shown = subprocess.run(["ldd", path], check=False, capture_output=True, text=True).stdout
        found = (line.partition(" => ")[2].rpartition(" (")[0] for line in shown.splitlines() if " => /" in line)
        return [one for one in found if LOADER not in one]

    def _add(self, path: str) -> Path:
        copy = self.libraries / Path(path).name
        if not copy.exists():
            try:
                add_section(os.path.realpath(path), output=copy)
            except RefusedError:  # signed, or without room
                shutil.copy(path, copy)
        return copy
