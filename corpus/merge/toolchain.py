"""Compilers and linkers of a machine, all with GNU's newest assembler, and a folder that they work in."""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.support.peers import Peers

    from .sources import Source

SUFFIXES = {"c": ".c", "c++": ".cc", "assembler": ".s"}
ALL = ("-fPIC", "-w", "-fno-ident")
WITH_SFRAME = ("-Wa,--gsframe",)
MOLD_3 = "mold3"  # the peers', which merges SFrame V3; `mold` is the machine's own


class Done(NamedTuple):
    status: int
    said: str  # by either stream, without the names of folders and of programs


class Toolchain:
    """Works in `directory`, with names of files below it: they stand in maps as they were given."""

    def __init__(self, peers: Peers, machine: str, prefix: str, directory: Path) -> None:
        """`machine` as Debian says; `prefix`: of the cross tools, or ""."""
        self.peers, self.machine, self.prefix, self.directory = peers, machine, prefix, directory
        self.tools = directory / "tools"
        self.tools.mkdir(parents=True, exist_ok=True)
        for name in ("as", "ld", "ld.bfd"):  # gcc takes them from -B by these names
            self._link(name, prefix + name)
        if not prefix:
            self._link("ld.lld", "ld.lld")
        self._link(f"{MOLD_3}/ld.mold", "ld.mold")

    def _link(self, name: str, tool: str) -> None:
        link = self.tools / name
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(self.peers.tool(tool))

    def has(self, program: str) -> bool:
        return shutil.which(self.prefix + program) is not None

    def run(self, *command: str | Path, cwd: str = "") -> Done:
        done = subprocess.run(
            list(map(str, command)), check=False, capture_output=True, text=True, errors="replace", cwd=self.directory / cwd
        )
        return Done(done.returncode, (done.stdout + done.stderr).replace(f"{self.directory}/", ""))

    def must(self, *command: str | Path, cwd: str = "") -> str:
        done = self.run(*command, cwd=cwd)
        if done.status:
            raise RuntimeError(f"{' '.join(map(str, command))}: exit status {done.status}: {done.said[:2000]}")
        return done.said

    def gnu(self, tool: str, *arguments: str | Path, cwd: str = "") -> Done:
        """A tool of GNU's newest binutils."""
        return self.run(self.peers.tool(self.prefix + tool), *arguments, cwd=cwd)

    def driver(self, language: str = "c++") -> list[str | Path]:
        return [self.prefix + ("g++" if language == "c++" else "gcc"), "-B", self.tools]

    def compile_all(self, sources: Sequence[Source], folder: str, flags: Sequence[str], jobs: int) -> list[str]:
        """Names of the objects, `folder`/NAME.o. What an earlier run compiled there stays."""
        place = self.directory / folder
        place.mkdir(parents=True, exist_ok=True)

        def compile_one(source: Source) -> str:
            file = place / f"{source.name}{SUFFIXES[source.language]}"
            recipe = place / f"{source.name}.recipe"
            made_by = repr((source, flags))
            if recipe.exists() and recipe.read_text() == made_by:
                return f"{folder}/{source.name}.o"
            file.write_text(source.text)
            self.must(
                *self.driver(source.language), *ALL, *source.flags, *flags, "-c", "-o", f"{source.name}.o", file.name, cwd=folder
            )
            recipe.write_text(made_by)
            return f"{folder}/{source.name}.o"

        with ThreadPoolExecutor(jobs) as pool:
            return list(pool.map(compile_one, sources))

    def link(self, out: str, linker: str, *arguments: str, cwd: str = "") -> str:
        """Links by gcc with `linker` (bfd, lld, mold, MOLD_3) and a map beside the file; returns what was said."""
        use = ["-B", str(self.tools / MOLD_3), "-fuse-ld=mold"] if linker == MOLD_3 else [f"-fuse-ld={linker}"]
        return self.must(*self.driver(), *use, f"-Wl,-Map={out}.map", "-o", out, *arguments, cwd=cwd)

    def sframegen(self, command: str, *arguments: str | Path, cwd: str = "") -> Done:
        return self.run(sys.executable, "-P", "-m", "sframegen", command, "--no-verify", *arguments, cwd=cwd)
