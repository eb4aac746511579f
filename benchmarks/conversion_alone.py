"""The conversion alone, in this process: CFI bytes in, section bytes out, no file read or written. The best of the rounds.

As in the command, Python looks for circles of objects after a million new ones, not after 700.
"""

from __future__ import annotations

import gc
from time import perf_counter_ns
from typing import TYPE_CHECKING

from benchmarks.figures import Figure
from benchmarks.ours import open_input, rows_of, section_of
from benchmarks.places import CORPUS, corpus_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.ours import Input
    from sframegen.tables.levels import LevelName

LEVELS: tuple[LevelName, ...] = ("none", "fast")
GROWTH_FROM = "libcrypto"
PART = "conversion alone"
ROUND_NS = 100_000_000  # a small file is converted again and again for so long


def quickest(source: Input, level: LevelName) -> int:
    """Nanoseconds of the quickest conversion in a round."""
    began = now = perf_counter_ns()
    best = 1 << 63
    while now - began < ROUND_NS:
        started = now
        section_of(source, level)
        now = perf_counter_ns()
        best = min(best, now - started)
    return best


def measure(rounds: int) -> Iterator[Figure]:
    gc.set_threshold(1_000_000)
    inputs = {name: open_input(corpus_file(name)) for name in CORPUS}
    rows = {name: rows_of(source) for name, source in inputs.items()}
    best: dict[tuple[str, str], int] = {}
    for _ in range(rounds + 1):  # the first warms up
        for level in LEVELS:
            for name, source in inputs.items():
                taken = quickest(source, level)
                best[level, name] = min(taken, best.get((level, name), taken))
    for level in LEVELS:
        for name, source in inputs.items():
            by_byte, what = best[level, name] / source.eh_frame_bytes, f"{level}, per .eh_frame byte"
            yield Figure(PART, f"{level}, per row", name, best[level, name] / rows[name], "ns")
            yield Figure(PART, f"{level}, .eh_frame", name, 1000 / by_byte, "MB/s")
            yield Figure(PART, what, name, by_byte, "ns")
            yield Figure(PART, what, name, by_byte, "ns", GROWTH_FROM)
