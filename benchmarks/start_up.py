"""What a command takes that has next to nothing to do, beside Python itself."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.figures import Figure
from benchmarks.measure import in_turn
from benchmarks.places import CACHE, corpus_file
from sframegen import add_section, read

if TYPE_CHECKING:
    from collections.abc import Iterator

PART, PYTHON = "start-up", "python -c pass"


def measure(rounds: int) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        done = Path(scratch, "bash")
        add_section(corpus_file("bash"), output=done)
        pc = read(done).table.start[0]
        tool = (sys.executable, "-P", "-m", "sframegen")
        commands: dict[str, list[str | Path]] = {
            PYTHON: [sys.executable, "-P", "-c", "pass"],
            "--version": [*tool, "--version"],
            "--help": [*tool, "--help"],
            "lookup": [*tool, "lookup", done, f"{pc:#x}"],
        }
        results = in_turn(commands, 4 * rounds, Path(scratch, "nothing"))
    for column in ("CPU time", "wall time"):
        for command, figures in results.items():
            seconds = figures.cpu_seconds if column == "CPU time" else figures.wall_seconds
            yield Figure(PART, command, column, 1000 * seconds, "ms")
