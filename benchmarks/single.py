"""The command line of a benchmark that makes one table: measured in rounds, printed, and written into a document."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.figures import Figure, markdown, written_into
from benchmarks.places import versions
from sframegen.program.build import build_kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def run(description: str | None, measure: Callable[[int], Iterator[Figure]], *, rounds: int, begin: str) -> None:
    """`measure(rounds)` gives the figures; `begin`: the line of a document after which the table stands."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds, help="counted runs of each command (default %(default)s)")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="write the table into a document, between its markers")
    options = parser.parse_args()
    if build_kind() != "compiled":
        parser.error("this sframegen is interpreted: measure the compiled build")
    text = f"{markdown(list(measure(options.rounds)))}\n\n{versions()}; medians of {options.rounds} rounds."
    print(text)
    if options.docs:
        options.docs.write_text(written_into(options.docs.read_text(), text, begin))
