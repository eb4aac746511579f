"""Reading all instructions: `check --instructions` and `--synthesize` beside capstone alone, with one process and with two.

usage: python -m benchmarks.instructions [--rounds N] [--megabytes N] [FILE...]    Prints the table; without a FILE, of the corpus.

Of each file the middle of its code is read, once with the functions that its CFI gives, and once as if nothing were known of it.
"""

from __future__ import annotations

import argparse
import resource
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import sframegen.cli.start  # noqa: F401 - the collector of garbage as the program has it
from benchmarks.figures import Figure, markdown
from benchmarks.places import corpus_file
from sframegen.checks.against_code import find_functions
from sframegen.code.context.function_starts import find_starts
from sframegen.code.context.plt import find_plt
from sframegen.code.decoding.decoded_code import CHUNK
from sframegen.code.isa.disassembly import make_disassembler
from sframegen.code.isa.machines import isa_of
from sframegen.code.whole_file.passes import survey, survey_without_cfi
from sframegen.conversion.cfi_sections import find_sources
from sframegen.conversion.convert import convert
from sframegen.elf.file import ElfFile, open_elf
from sframegen.format.abi import abi_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sframegen.elf.ranges import Range

FILES = ("libcrypto", "libLLVM")
ALONE = "capstone alone"
JOBS = (1, 2)
MOST = 8_000_000  # bytes of the code of each file
PART = "reading instructions"


class Spent(NamedTuple):
    """Seconds of all processes, and on the clock."""

    used: float
    clock: float


def spent(work: Callable[[], object]) -> Spent:
    used, clock = _used(), time.perf_counter()
    work()
    return Spent(_used() - used, time.perf_counter() - clock)


def _used() -> float:
    return sum(sum(resource.getrusage(whose)[:2]) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def disassemble(elf: ElfFile, code: Sequence[Range]) -> None:
    capstone = make_disassembler(*isa_of(abi_of(elf)).capstone)
    for start, end in code:
        for at in range(start, end, CHUNK):
            capstone.records(bytes(elf.at(at, min(CHUNK, end - at))), at)


def tasks_of(elf: ElfFile, code: Range) -> Iterator[tuple[str, int, Callable[[int], object]]]:
    """Yield name, bytes of code and the work, which takes the number of processes; first `ALONE`."""
    abi = abi_of(elf)
    yield ALONE, code[1] - code[0], lambda _: disassemble(elf, [code])
    functions = find_functions(elf, convert(find_sources(elf).sections, [code], abi))
    if functions:
        entries = {start for start, _ in functions}
        size = sum(end - start for start, end in functions)
        yield "functions known", size, lambda jobs: survey(elf, functions, entries, jobs)
    begins, plt = find_starts(elf, abi) - {elf.header.e_entry}, find_plt(elf, abi)
    yield "nothing known", code[1] - code[0], lambda jobs: survey_without_cfi(elf, [code], begins, plt, jobs)


def middle_of(elf: ElfFile, most: int) -> Range:
    start, end = max(elf.executable_ranges(), key=lambda part: part[1] - part[0])
    start = max(start, (start + end - most) // 2)
    return start, min(end, start + most)


def measure(paths: Sequence[Path], rounds: int, most: int) -> Iterator[Figure]:
    """Yield medians of the rounds. A row of shares has those of capstone's own speed."""
    for path in paths:
        elf = open_elf(path)
        tasks = list(tasks_of(elf, middle_of(elf, most)))
        found: dict[tuple[str, int], list[Spent]] = {}
        for _ in range(rounds):
            for name, _, work in tasks:
                for jobs in JOBS[:1] if name == ALONE else JOBS:
                    found.setdefault((name, jobs), []).append(spent(partial(work, jobs)))
        sizes = {name: size for name, size, _ in tasks}
        used = {key: median(one.used for one in row) for key, row in found.items()}
        clock = {key: median(one.clock for one in row) for key, row in found.items()}
        own = sizes[ALONE] / used[ALONE, 1] / 1e6
        yield Figure(PART, ALONE, path.name, own, "MB/s")
        for name, size in list(sizes.items())[1:]:
            speed = size / used[name, 1] / 1e6
            yield Figure(PART, name, path.name, speed, "MB/s of CPU time")
            yield Figure(PART, f"{name}, of capstone's speed", path.name, speed / own, "of 1")
            yield Figure(PART, f"{name}, two processes", path.name, clock[name, 1] / clock[name, 2], "times as fast")


def of_corpus(rounds: int) -> Iterator[Figure]:
    return measure([corpus_file(name) for name in FILES], rounds, MOST)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="counted runs of each (default %(default)s)")
    parser.add_argument("--megabytes", type=float, default=MOST / 1e6, help="of the code of each file (default %(default)s)")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    options = parser.parse_args()
    paths = options.files or [corpus_file(name) for name in FILES]
    figures = list(measure(paths, options.rounds, int(options.megabytes * 1e6)))
    print(markdown(figures))


if __name__ == "__main__":
    main()
