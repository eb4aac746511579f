"""Compiles the kernel program with clang when the package is built: an object file for each machine. setup.py runs this file."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = "walker.bpf.c"
FLAGS = ("-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror")
COMPILER = "clang"


def object_name(machine: str) -> str:
    return f"walker_{machine}.bpf.o"


def compile_objects(source: Path, folder: Path, targets: dict[str, str]) -> str:
    """Compile the kernel program in `source` for each machine, into `folder`. Return the reason if that fails, else an empty text.

    `targets`: machines.BPF_TARGETS, which is not imported because setup.py runs this file before anything is installed.
    """
    clang = shutil.which(COMPILER)
    if clang is None:
        return f"there is no {COMPILER}"
    strip = shutil.which("llvm-strip")
    for machine, target in targets.items():
        output = folder / object_name(machine)
        anywhere = f"-ffile-prefix-map={source.absolute()}=."  # the same bytes in each folder
        made = subprocess.run(
            [clang, *FLAGS, anywhere, f"-D__TARGET_ARCH_{target}", "-c", SOURCE, "-o", str(output.absolute())],
            cwd=source,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            output.unlink(missing_ok=True)
            return f"{COMPILER} cannot compile {SOURCE}: {next(iter(made.stderr.splitlines()), '')}"
        if strip:  # BTF stays; nobody needs DWARF, half of the file
            subprocess.run([strip, "-g", str(output)], check=True)
    return ""
