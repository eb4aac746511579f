"""Programs that walk their own stack: compiled with the library, with sections in them and in copies of the machine's libraries."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

import sframegen
from tests.support.peers import Compiler, needs_compiler

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests/backtrace/programs"
LIBRARY = ROOT / "sframegen/backtrace"
INCLUDE = (f"-I{LIBRARY}", f"-I{PROGRAMS}", f"-I{ROOT / 'sframegen/integration/include'}")
SOURCE = str(LIBRARY / "sframe_backtrace.c")
LIBRARIES = ("libc.so.6", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6")
LOADER_KERNEL = (6, 7)  # starts a dynamic loader that has a section


class OwnStack:
    """`home`: copies of the machine's libraries, with sections. The dynamic loader is among them if the kernel can start it so."""

    def __init__(self, compile_c: Compiler, home: Path) -> None:
        if platform.machine() != "x86_64":
            pytest.skip("no x86-64 machine: these programs are run by others elsewhere")
        self.compile_c = compile_c
        self.home = home
        for name in LIBRARIES:
            shutil.copy(compiled_library(name), home / name)
            sframegen.add_section(home / name)
        version = tuple(int(part) for part in platform.release().split(".")[:2])
        self.loader: Path | None = None
        if version >= LOADER_KERNEL:
            self.loader = home / "ld.so"
            shutil.copy("/lib64/ld-linux-x86-64.so.2", self.loader)
            sframegen.add_section(self.loader, min_kernel="6.7")

    def object(self, *flags: str) -> str:
        return str(self.compile_c(f'#include "{SOURCE}"\n', *INCLUDE, "-O2", "-fPIC", "-c", *flags, name="sframe_backtrace.o"))

    def compiled(self, name: str, *flags: str) -> Path:
        return self.compile_c((PROGRAMS / name).read_text(), *INCLUDE, *flags, name=Path(name).stem)

    def program(self, name: str, *flags: str, **options: int) -> Path:
        """The same with a section. `options`: of add_section."""
        plain = self.compiled(name, *flags)
        program = plain.with_name(f"{plain.name}-{'-'.join(map(str, options.values())) or 'with'}")
        if not program.exists():
            shutil.copy(plain, program)
            sframegen.add_section(program, **options)  # type: ignore[arg-type]
        return program

    def command(self, program: Path, *arguments: str | Path) -> list[str]:
        loader = [str(self.loader), "--library-path", str(self.home)] if self.loader else []
        return [*loader, str(program), *map(str, arguments)]

    def run(self, program: Path, *arguments: str | Path, alone: bool = False, **environ: str) -> str:
        """What the program prints; it has to end with 0. `alone`: it brings its own C library, or has none."""
        environ = {**os.environ, **environ}
        if self.loader is None or alone:
            environ["WITHOUT_LOADER"] = "1"
            environ["LD_LIBRARY_PATH"] = str(self.home)
        command: Sequence[str] = [str(program), *map(str, arguments)] if alone else self.command(program, *arguments)
        done = subprocess.run(command, env=environ, capture_output=True, text=True, errors="replace", check=False)
        assert done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout


def compiled_library(name: str) -> Path:
    """Path of a library of the machine's compiler; skips the test without it."""
    needs_compiler("gcc")
    path = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
    if not Path(path).is_absolute():
        pytest.skip(f"no {name} on this machine: install g++")
    return Path(path).resolve()
