"""Sizes, times and memory of sframegen beside other programs, measured in one run: docs/measured/performance.json.

Prints tables: a column each file, a row each thing, as figures, or as shares of another row. Sizes are exact; times of processes
are medians, those of loops in this process the best of all rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks import conversion_alone, growth, instructions, lookup, merging, size, stacks, start_up, whole_process
from benchmarks.figures import Figure, markdown
from benchmarks.places import versions
from corpus import measured
from sframegen.program.build import build_kind

PARTS = {
    "size": size.measure,
    "process": whole_process.measure,
    "start-up": start_up.measure,
    "growth": growth.measure,
    "conversion": conversion_alone.measure,
    "instructions": instructions.of_corpus,
    "merge": merging.measure,
    "stack": stacks.measure,
    "lookup": lookup.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="counted runs of everything that is timed (default %(default)s)")
    parser.add_argument("--only", choices=PARTS, action="append", help="measure this part; may be given again")
    parser.add_argument(
        "--from", type=Path, dest="known", metavar="FILE", help="measure nothing: draw the plots of an earlier --json"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file, and plots (SVG) beside it")
    options = parser.parse_args()
    if options.known:
        figures = [Figure(**one) for one in json.loads(options.known.read_text())["figures"]]
        draw(figures, options.known.parent)
        return
    if build_kind() != "compiled":
        parser.error("this sframegen is interpreted: measure the compiled build")
    figures = []
    with ProcessPoolExecutor(1, max_tasks_per_child=1) as alone:
        for name in options.only or PARTS:
            print(f"measuring: {name}", file=sys.stderr, flush=True)
            figures += alone.submit(part, name, options.rounds).result()
    print(markdown([one for one in figures if one.part != growth.PART]))  # whose points only a plot shows
    if options.json:
        measured.write(options.json, {**versions(), "rounds": options.rounds, "figures": figures})
        draw(figures, options.json.parent)


def part(name: str, rounds: int) -> list[Figure]:
    """In a process of its own: a program that is started begins with the peak memory of the one that starts it."""
    return list(PARTS[name](rounds))


def draw(figures: list[Figure], folder: Path) -> None:
    from benchmarks import plot  # noqa: PLC0415 - matplotlib need not be there to measure

    plot.draw(figures, folder)


if __name__ == "__main__":
    main()
