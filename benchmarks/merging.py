"""Merging the sections of many objects: time and memory of both forms of `sframegen merge`, against what linkers take for `-r`.

The objects are one that GNU as made with --gsframe, copied, with names of its own in each copy, and calls from each to another one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.figures import Figure
from benchmarks.measure import in_turn
from benchmarks.places import CACHE, peer
from corpus.samples import FLAGS, newest

if TYPE_CHECKING:
    from collections.abc import Iterator

COUNTS = (2_000, 20_000)
OWN, OTHER = b"f88888", b"f99999"  # in names of the object that is copied: of the functions that it has, and of one that it calls
FUNCTIONS = 8
SOURCE = """
int printf(const char *, ...);
int f99999_0(int);
__attribute__((noinline)) static int kept(int a) { volatile int room[4] = {a}; printf("%d", a); return room[0] + 1; }
""" + "".join(
    f'int f88888_{k}(int a) {{ if (a > 3) printf("%d\\n", a); int q = kept(a + {k}); return q > 100 ? q : f99999_0(q) + a; }}\n'
    for k in range(FUNCTIONS)
)
GNU_R = "GNU ld -r"
TIME, MEMORY = "time of a merge", "memory of a merge"


def make_objects(count: int, directory: Path) -> list[str]:
    """Their names, below the directory."""
    source, compiled = directory / "one.c", directory / "one.o"
    source.write_text(SOURCE)
    subprocess.run([*newest().command("gcc"), *FLAGS, "-c", "-o", compiled, source], check=True)
    raw = compiled.read_bytes()
    names = [f"{number:05}.o" for number in range(count)]
    for number, name in enumerate(names):
        copy = raw.replace(OWN, b"f%05d" % number).replace(OTHER, b"f%05d" % ((number * 7 + 1) % count))
        (directory / name).write_bytes(copy)
    return names


def measure(rounds: int, counts: tuple[int, ...] = COUNTS) -> Iterator[Figure]:
    """A column each number of objects. What a command runs in its turn counts: memory is that of the largest process."""
    tools = (sys.executable, "-P", "-m", "sframegen", "merge", "--no-verify", "-q")
    before = Path.cwd()
    for count in counts:
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            os.chdir(scratch)  # short names: 20,000 long ones do not fit into a command line
            try:
                names = make_objects(count, Path(scratch))
                link: list[str | Path] = [peer("ld.bfd"), "-shared", "-o"]
                subprocess.run([*link, "linked", "--discard-sframe", "-Map=map", *names], check=True)
                commands: dict[str, list[str | Path]] = {
                    GNU_R: [peer("ld.bfd"), "-r", "-o", "out", *names],
                    "lld -r": [peer("ld.lld"), "-r", "-o", "out", *names],
                    "GNU ld -shared": [*link, "out", *names],
                    "merge -o with GNU ld": [*tools, "--linker", peer("ld.bfd"), "-o", "out", *names],
                    "merge -o with lld": [*tools, "--linker", peer("ld.lld"), "-o", "out", *names],
                    "merge --map": [*tools, "--map", "map", "-o", "out", "linked", *names],
                }
                results = in_turn(commands, rounds, Path("out"))
            finally:
                os.chdir(before)
        column = f"{count:,} objects"
        for name, figures in results.items():
            yield Figure(TIME, name, column, figures.wall_seconds, "s")
            yield Figure(MEMORY, name, column, figures.largest_bytes / 1e6, "MB")
        for name, figures in results.items():
            if name != GNU_R:
                yield Figure(TIME, name, column, figures.wall_seconds, "s", GNU_R)
                yield Figure(MEMORY, name, column, figures.largest_bytes / 1e6, "MB", GNU_R)
