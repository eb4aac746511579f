"""The programs: each with its code and where its debug information is."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cfi import reader
from cfi.section import FollowedRegisters
from sframegen.conversion.sources import find_sources
from sframegen.elf.file import open_elf
from sframegen.elf.notes import build_id_of
from sframegen.format.abi import abi_of

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAMS = Path(__file__).with_name("programs")
DEBUG_FILES = Path("/usr/lib/debug/.build-id")
LIBC = Path("/lib/x86_64-linux-gnu/libc.so.6")
PYTHON = Path("/usr/bin/python3.11")


class Subject(NamedTuple):
    """`find`: gets a folder for what it builds, and returns the program and the file with its debug information.

    Raises OSError or CalledProcessError.
    """

    name: str
    what: str
    find: Callable[[Path], tuple[Path, Path]]


def _installed(program: Path) -> tuple[Path, Path]:
    build_id = (build_id_of(open_elf(program)) or b"").hex()
    debug = DEBUG_FILES / build_id[:2] / f"{build_id[2:]}.debug"
    if not debug.exists():
        raise FileNotFoundError(f"no {debug}: install its debug package")
    return program, debug


def _compiled(folder: Path, name: str, *command: str) -> tuple[Path, Path]:
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(f"no {command[0]}")
    out = folder / name
    environment = dict(os.environ, GOCACHE=str(folder / "go"), GOFLAGS="-mod=mod")
    subprocess.run([*command[:-1], "-o", str(out), command[-1]], check=True, capture_output=True, env=environment)
    return out, out


SUBJECTS = (
    Subject("libc", "the machine's, with libc6-dbg: C and assembly", lambda _: _installed(LIBC)),
    Subject("python3.11", "the machine's, with python3.11-dbg: C, optimised at link time", lambda _: _installed(PYTHON)),
    Subject(
        "containers",
        "`g++ -O2 -g`: the standard library's templates",
        lambda folder: _compiled(folder, "containers", "g++", "-O2", "-g", str(PROGRAMS / "containers.cc")),
    ),
    Subject(
        "words",
        "`rustc -O -g`: iterators and collections",
        lambda folder: _compiled(folder, "words", "rustc", "-O", "-g", str(PROGRAMS / "words.rs")),
    ),
    Subject("gofmt", "`go build cmd/gofmt`: Go", lambda folder: _compiled(folder, "gofmt", "go", "build", "cmd/gofmt")),
)


def addresses_in(program: Path, count: int, seed: int) -> list[int]:
    """Return addresses drawn from the bytes of functions that have call frame information, as samples are."""
    elf = open_elf(program)
    abi = abi_of(elf)
    fdes = reader.read(find_sources(elf).sections, FollowedRegisters(abi.fp, abi.sp))
    ends = [*accumulate(fdes.size)]
    draw = random.Random(seed)  # noqa: S311 - which addresses there are
    found = []
    for _ in range(count):
        place = draw.randrange(ends[-1])
        number = bisect_right(ends, place)
        found.append(fdes.start[number] + place - (ends[number] - fdes.size[number]))
    return found
