"""Everything that docs/reports/performance.md says, measured in one run: sizes, whole processes, the conversion alone, look-ups.

Prints one table: a column each file, a row each thing, as figures, or as shares of another row. Sizes are exact; times of processes
are medians, those of loops in this process the best of all rounds.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import conversion_alone, lookup, size, whole_process
from benchmarks.figures import from_json, markdown, to_json, written_into
from benchmarks.places import versions
from sframegen.program.build import build_kind

PARTS = {"size": size.measure, "process": whole_process.measure, "conversion": conversion_alone.measure, "lookup": lookup.measure}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="counted runs of everything that is timed (default %(default)s)")
    parser.add_argument("--only", choices=PARTS, action="append", help="measure this part; may be given again")
    parser.add_argument("--from", type=Path, dest="known", metavar="FILE", help="measure nothing: the figures of an earlier --json")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="write the plots (SVG) into this folder; needs matplotlib")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="write the table into a document, between its markers")
    options = parser.parse_args()
    if options.known:
        about, figures = from_json(options.known.read_text())
    else:
        if build_kind() != "compiled":
            parser.error("this sframegen is interpreted: measure the compiled build")
        about, figures = f"{versions()}; {options.rounds} rounds", []
        for name in options.only or PARTS:
            print(f"measuring: {name}", file=sys.stderr, flush=True)
            figures += PARTS[name](options.rounds)
    text = f"{markdown(figures)}\n\n{about}."
    print(text)
    if options.json:
        options.json.write_text(to_json(about, figures))
    if options.plots:
        from benchmarks.plot import draw  # noqa: PLC0415 - matplotlib need not be there to measure

        draw(figures, options.plots)
    if options.docs:
        options.docs.write_text(written_into(options.docs.read_text(), text))


if __name__ == "__main__":
    main()
