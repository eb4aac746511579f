"""Walks stacks with glibc's backtrace() and SFrame sections of version 2 alone; compares each frame with DWARF's: corpus/README.md.

glibc is what tools/get-glibc built with --enable-sframe. A program, a library, libc, libgcc and the dynamic linker get sections, at
each level of optimisation, and GNU's own ones as `convert` writes them; then nothing leads to their CFI any more (PT_GNU_EH_FRAME
becomes PT_NULL). Controls: the same with rows for outermost frames, and without sections. Exit status 1: frames differ though
SFrame can say them, or a control found frames.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from corpus.glibc.objects import compile_all, converted, prepare, with_outermost_rows, with_section, without_section
from corpus.glibc.report import markdown, write
from corpus.glibc.walks import SCENARIOS, Compared, compared, frames, unexplained
from sframegen.tables.optimize import LEVELS
from tests.support.peers import Peers, cache_directory

WAYS = {**{f"`{level}`": with_section(level) for level in LEVELS}, "GNU's, converted": converted}
CONTROLS = {"control: rows for outermost frames": with_outermost_rows, "control: no section": without_section}


def walk_all(folder: Path, loader: str) -> list[list[list[str]]]:
    """The frames of each run of each scenario."""
    return [[frames(folder, loader, run) for run in scenario.runs] for scenario in SCENARIOS]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m corpus.glibc", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--docs", type=Path, metavar="FILE", help="write the tables into a document, between their marks")
    options = parser.parse_args()
    cache = cache_directory()
    glibc = cache / "glibc"
    libraries = sorted((glibc / "lib").iterdir())
    loader = next(one.name for one in libraries if one.name.startswith("ld-"))
    with tempfile.TemporaryDirectory(prefix="corpus-glibc-") as scratch:
        source = Path(scratch, "source")
        source.mkdir()
        gcc = [str(cache / "gcc" / "bin" / "gcc"), "-B", str(Peers().directory / "bin")]
        files = [*compile_all(gcc, source), *libraries]
        dwarf = Path(scratch, "dwarf")
        prepare(files, dwarf, without_section, dwarf=True)
        expected = walk_all(dwarf, loader)
        left_out: dict[str, dict[str, int]] = {}
        found: dict[str, list[Compared]] = {}
        for number, (way, change) in enumerate((WAYS | CONTROLS).items()):
            folder = Path(scratch, str(number))
            left_out[way] = prepare(files, folder, change, dwarf=False)
            found[way] = [compared(ours, theirs) for ours, theirs in zip(walk_all(folder, loader), expected, strict=True)]
    about = f"One run, on {os.uname().machine}: {', '.join((glibc / 'versions').read_text().splitlines())}."
    text = markdown(about, [len(runs[0]) for runs in expected], found, {way: left_out[way] for way in WAYS})
    print(text)
    if options.docs:
        write(options.docs, text)
    wrong = unexplained({way: found[way] for way in WAYS})
    wrong += [f"{way}: frames are found" for way in CONTROLS if any(one.found or one.equal for one in found[way])]
    for line in wrong:
        print(f"corpus/glibc: {line}", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
