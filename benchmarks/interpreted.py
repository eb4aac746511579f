"""What the interpreted build takes, beside the compiled one: CPU time of whole processes.

usage: python -m benchmarks.interpreted PYTHON [--docs docs/compiled.md]    PYTHON has the interpreted build, this one the compiled.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.figures import padded, written_into
from benchmarks.measure import in_turn
from benchmarks.places import CACHE, corpus_file
from corpus.report_pages import measured_with
from sframegen import add_section

if TYPE_CHECKING:
    from collections.abc import Iterator

FILES = ("bash", "libc", "libcrypto", "libLLVM")
HEAD = ("file", "MB", "command", "compiled", "interpreted", "times")
BEGIN = "<!-- python -m benchmarks.interpreted writes this: begin -->"
ROUNDS = 2


def rows(name: str, interpreted: str, scratch: Path) -> Iterator[list[str]]:
    file, done = corpus_file(name), scratch / "with-section"
    add_section(file, output=done, verify=False)
    commands: dict[str, list[str | Path]] = {
        "add-section --no-verify": ["add-section", "--no-verify", "--output", scratch / "out", file],
        "check --no-second-reader": ["check", "--no-second-reader", done],
    }
    for command, arguments in commands.items():
        builds = {python: [python, "-P", "-m", "sframegen", *arguments] for python in (sys.executable, interpreted)}
        ours, theirs = (figures.cpu_seconds for figures in in_turn(builds, ROUNDS, scratch / "out").values())
        yield [name, f"{file.stat().st_size / 1e6:.1f}", f"`{command}`", f"{ours:.2f} s", f"{theirs:.2f} s", f"{theirs / ours:.1f}"]


def text(interpreted: str) -> str:
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        table = padded([HEAD, *(row for name in FILES for row in rows(name, interpreted, Path(scratch)))])
    machine = f"{os.cpu_count()} cores, {platform.machine()}; load average {load:.1f} before it"
    return f"{table}\n\n{measured_with()}, Python {platform.python_version()}, {machine}; CPU time, medians of {ROUNDS} rounds."


if __name__ == "__main__":
    if sys.argv[2:3] == ["--docs"]:
        document = Path(sys.argv[3])
        document.write_text(written_into(document.read_text(), text(sys.argv[1]), BEGIN))
    else:
        print(text(sys.argv[1]))
