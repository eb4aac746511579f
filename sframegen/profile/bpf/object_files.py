"""Compiles the kernel program with clang into an object file for each machine. setup.py runs this file to build the package."""

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
    """Compile the kernel program in the folder `source` for each machine, into `folder`. Return an error message, or "".

    `targets`: machines.BPF_TARGETS, which is not imported because setup.py runs this file before anything is installed.
    """
    clang = shutil.which(COMPILER)
    if clang is None:
        return f"there is no {COMPILER}"
    strip = shutil.which("llvm-strip")
    for machine, target in targets.items():
        output = folder / object_name(machine)
        prefix_map = f"-ffile-prefix-map={source.absolute()}=."  # so that the object does not depend on where it is built
        compiled = subprocess.run(
            [clang, *FLAGS, prefix_map, f"-D__TARGET_ARCH_{target}", "-c", SOURCE, "-o", str(output.absolute())],
            cwd=source,
            capture_output=True,
            text=True,
            check=False,
        )
        if compiled.returncode:
            output.unlink(missing_ok=True)
            return f"{COMPILER} cannot compile {SOURCE}: {next(iter(compiled.stderr.splitlines()), '')}"
        if strip:  # it keeps BTF, and removes DWARF, which is half of the file
            subprocess.run([strip, "-g", str(output)], check=True)
    return ""
