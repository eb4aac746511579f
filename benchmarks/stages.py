"""Where the time of one conversion goes: milliseconds of each stage, in the quickest of several runs.

usage: python -m benchmarks.stages [FILE...]    a corpus' name, as libxul, or a path
"""

from __future__ import annotations

import sys
from functools import wraps
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from benchmarks.ours import open_input, rows_of, section_of
from benchmarks.places import CORPUS, corpus_file
from cfi import reader
from sframegen.conversion import convert
from sframegen.format.encode import Encoder
from sframegen.tables import optimize

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")
RUNS = 9
# (where the stage's function is, its name, what it does), in the order in which they run
STAGES: tuple[tuple[Any, str, str], ...] = (
    (reader, "read", "CFI -> rows, and a value for each distinct rule"),
    (convert, "_pieces", "which FDE describes which code"),
    (convert, "_Rules", "distinct rules -> SFrame rules"),
    (convert, "EncodedRules", "SFrame rules -> words"),
    (convert, "_split", "rows -> functions"),
    (convert, "narrow", "flexible functions cut"),
    (optimize, "may_follow", "padding and symbols between functions"),
    (optimize, "join", "which neighbours share an FDE"),
    (optimize, "Encoder", "sharing, sizes and places of blocks"),
    (Encoder, "encode", "the bytes"),
)


def main() -> None:
    spent: dict[str, int] = {}
    for holder, name, what in STAGES:
        setattr(holder, name, timed(getattr(holder, name), what, spent))
    for name in sys.argv[1:] or ("libcrypto", "libxul"):
        source = open_input(corpus_file(name) if name in CORPUS else Path(name))
        rows = rows_of(source)
        best: tuple[int, dict[str, int]] = (1 << 63, {})
        for _ in range(RUNS):
            spent.clear()
            started = perf_counter_ns()
            section_of(source, "fast")
            taken = perf_counter_ns() - started
            if taken < best[0]:
                best = taken, dict(spent)
        total, stages = best
        print(f"{name}: {rows:,} rows, {total / rows:.0f} ns each")
        for what, stage in [*stages.items(), ("the rest", total - sum(stages.values()))]:
            print(f"  {stage / 1e6:7.2f} ms  {100 * stage / total:5.1f} %  {what}")


def timed(function: Callable[P, R], what: str, spent: dict[str, int]) -> Callable[P, R]:
    """The function, which adds its time to its stage; the time of a stage within it counts for that one only."""

    @wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        within, started = sum(spent.values()), perf_counter_ns()
        result = function(*arguments, **named)
        taken = perf_counter_ns() - started
        spent[what] = spent.get(what, 0) + taken - (sum(spent.values()) - within)
        return result

    return call


if __name__ == "__main__":
    main()
