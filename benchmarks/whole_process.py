"""Whole processes: add-section to a new file and check of it, against copying, objcopy adding the section, reading the CFI.

Wall time, CPU time, memory, page faults; as shares of readelf, and of cp.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.figures import Figure
from benchmarks.measure import in_turn
from benchmarks.ours import open_input, section_of
from benchmarks.places import CACHE, corpus_file, peer

if TYPE_CHECKING:
    from collections.abc import Iterator

FILES = ("bash", "libcrypto", "libLLVM", "libxul")
READELF, COPY, ADD = "readelf -wF", "cp", "add-section --no-verify"


def measure(rounds: int) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        section, out, done = (Path(scratch, name) for name in ("section", "out", "done"))
        tool = (sys.executable, "-P", "-m", "sframegen")
        for name in FILES:
            file = corpus_file(name)
            section.write_bytes(section_of(open_input(file), "fast"))
            add = (*tool, "add-section", "-q", "-o", out)
            subprocess.run([*add[:-1], done, "--no-verify", file], check=True)
            results = in_turn(
                {
                    READELF: [peer("readelf"), "-wF", file],
                    "llvm-dwarfdump --eh-frame": [peer("llvm-dwarfdump"), "--eh-frame", file],
                    COPY: ["cp", file, out],
                    "objcopy --add-section": [peer("objcopy"), "--add-section", f".new={section}", file, out],
                    ADD: [*add, "--no-verify", file],
                    "add-section": [*add, file],
                    "check": [*tool, "check", "-q", done],
                },
                rounds,
                out,
            )
            for command, figures in results.items():
                yield Figure("time", command, name, figures.wall_seconds, "s")
                yield Figure("CPU time", command, name, figures.cpu_seconds, "s")
                yield Figure("page faults", command, name, figures.page_faults, "number")
                yield Figure("peak memory", command, name, figures.peak_bytes / 1e6, "MB")
                yield Figure("peak memory, anonymous", command, name, figures.anonymous_bytes / 1e6, "MB")
            for command, figures in results.items():
                if command != READELF:
                    yield Figure("time", command, name, figures.wall_seconds, "s", READELF)
                    yield Figure("CPU time", command, name, figures.cpu_seconds, "s", READELF)
            yield Figure("time", ADD, name, results[ADD].wall_seconds, "s", COPY)
            yield Figure("CPU time", ADD, name, results[ADD].cpu_seconds, "s", COPY)
