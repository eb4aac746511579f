"""Cost against size: add-section on files of this machine, the smallest to the largest, without the start of a process.

It must be linear: the cost of a byte of `.eh_frame` is not to grow with the number of bytes.
"""

from __future__ import annotations

import os
import tempfile
from math import log10
from pathlib import Path
from statistics import median
from time import process_time_ns
from typing import TYPE_CHECKING

from benchmarks.figures import Figure
from benchmarks.places import CACHE, CORPUS, corpus_file
from sframegen import add_section
from sframegen.base.errors import SframegenError
from sframegen.elf.file import open_elf

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PART, BY_SIZE = "growth", "cost by size"
FRAMES, COST = "bytes of .eh_frame", "add-section --no-verify"
FOLDERS = ("/usr/bin", "/usr/lib")
STEPS_OF_TEN = 40  # files for each power of ten
LEAST, LARGE = 1_000, 1_000_000  # bytes of .eh_frame


def measure(rounds: int) -> Iterator[Figure]:
    points: list[tuple[int, int]] = []
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        for size, path in chosen(sized(linked_files())):
            try:
                points.append((size, min(_nanoseconds(path, Path(scratch, "out")) for _ in range(rounds))))
            except SframegenError:
                continue  # signed, or with a section already
    for number, (size, taken) in enumerate(points):
        yield Figure(PART, FRAMES, str(number), size, "bytes")
        yield Figure(PART, COST, str(number), taken / 1e9, "s")
    for power in sorted({int(log10(size)) for size, _ in points}):
        costs = [taken / size for size, taken in points if int(log10(size)) == power]
        column = f"from {10 ** (power - 3):,} KB"
        yield Figure(BY_SIZE, "files", column, len(costs), "number")
        yield Figure(BY_SIZE, "CPU time for a byte of .eh_frame, median", column, median(costs), "ns")


def linked_files() -> Iterator[Path]:
    for folder in FOLDERS:
        for directory, _, names in os.walk(folder):
            yield from (Path(directory, name) for name in names)
    yield from map(corpus_file, CORPUS)


def sized(paths: Iterable[Path]) -> dict[int, Path]:
    """By the size of .eh_frame, one file of each."""
    found: dict[int, Path] = {}
    for path in paths:
        try:
            section = None if path.is_symlink() else open_elf(path).section(".eh_frame")
        except (SframegenError, OSError):
            continue
        if section is not None and section.header.sh_size >= LEAST:
            found.setdefault(section.header.sh_size, path)
    return found


def chosen(files: dict[int, Path]) -> list[tuple[int, Path]]:
    """Evenly on a logarithmic axis, and the largest ones."""
    steps = {round(STEPS_OF_TEN * log10(size)): size for size in sorted(files)}
    return [(size, files[size]) for size in steps.values()]


def _nanoseconds(path: Path, output: Path) -> int:
    output.unlink(missing_ok=True)
    began = process_time_ns()
    add_section(path, output=output, verify=False)
    return process_time_ns() - began
