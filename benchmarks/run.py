"""Everything that docs/performance.md and docs/reports/performance.md say, measured in one run.

Prints tables: a column each file, a row each thing, as figures, or as shares of another row. Sizes are exact; times of processes
are medians, those of loops in this process the best of all rounds.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks import conversion_alone, growth, instructions, lookup, merging, size, stacks, start_up, whole_process
from benchmarks.figures import Figure, from_json, markdown, to_json, written_into
from benchmarks.places import versions
from benchmarks.summary import summary
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
    parser.add_argument("--from", type=Path, dest="known", metavar="FILE", help="measure nothing: take an earlier performance.json")
    parser.add_argument(
        "--docs",
        type=Path,
        metavar="FOLDER",
        help="of all parts: write figures, tables and plots (SVG) into this folder of documents",
    )
    options = parser.parse_args()
    if options.docs and options.only:
        parser.error("the documents have all parts: --docs or --only")
    if options.known:
        about, figures = from_json(options.known.read_text())
    else:
        if build_kind() != "compiled":
            parser.error("this sframegen is interpreted: measure the compiled build")
        about, figures = f"{versions()}; {options.rounds} rounds", []
        with ProcessPoolExecutor(1, max_tasks_per_child=1) as alone:
            for name in options.only or PARTS:
                print(f"measuring: {name}", file=sys.stderr, flush=True)
                figures += alone.submit(measured, name, options.rounds).result()
    print(tables(about, figures))
    if options.docs:
        write(about, figures, options.docs)


def measured(name: str, rounds: int) -> list[Figure]:
    """One part, in a process of its own: a program that is started begins with the peak memory of the one that starts it."""
    return list(PARTS[name](rounds))


def tables(about: str, figures: list[Figure]) -> str:
    """All but the points that only a plot shows."""
    return f"{markdown([one for one in figures if one.part != growth.PART])}\n\n{about}."


def write(about: str, figures: list[Figure], docs: Path) -> None:
    from benchmarks.plot import draw  # noqa: PLC0415 - matplotlib need not be there to measure

    (docs / "reports/performance.json").write_text(to_json(about, figures))
    draw(figures, docs / "reports")
    for document, text in (
        ("performance.md", f"{summary(figures)}\n\n{about}."),
        ("reports/performance.md", tables(about, figures)),
    ):
        (docs / document).write_text(written_into((docs / document).read_text(), text))


if __name__ == "__main__":
    main()
