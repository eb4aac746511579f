"""What people meet every day: the start of a command, small files, links, a check, memory; each beside its goal.

usage: python -m benchmarks.everyday [--rounds 9] [--only PART]    Prints a table. Times and memory are medians; needs gcc and make.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.figures import padded
from benchmarks.linking import SOURCE
from benchmarks.measure import Figures, in_turn, run
from benchmarks.places import CACHE, corpus_file, peer
from corpus import measured
from sframegen.program.build import build_kind
from tests.support.inputs.linker_inputs import with_many_sections

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Words = Sequence[str | Path]

TOOL = (sys.executable, "-P", "-m", "sframegen")
SMALL, LINKS, SECTIONS = 40, 200, 66_000
MAKEFILE = "all: $(addprefix program,$(shell seq {links}))\nprogram%: main.c\n\tgcc -O2 {shims} -o $@ $<\n"


class Row(NamedTuple):
    what: str
    value: float
    goal: float
    unit: str = ""  # none: a share


def add(scratch: Path, file: str | Path, *options: str) -> Words:
    return (*TOOL, "add-section", "-q", *options, "-o", scratch / "out", file)


def starts(scratch: Path, rounds: int) -> Iterator[Row]:
    commands: dict[str, Words] = {
        "pass": (sys.executable, "-P", "-c", "pass"),
        "`--version` / `python -c pass`": (*TOOL, "--version"),
        "`add-section` of /bin/true / `python -c pass`": add(scratch, "/bin/true"),
    }
    results = in_turn(commands, 4 * rounds, scratch / "out")
    base = results.pop("pass").wall_seconds
    for (what, figures), goal in zip(results.items(), (3, 8), strict=True):
        yield Row(what, figures.wall_seconds / base, goal)


def small_files(scratch: Path, rounds: int) -> Iterator[Row]:
    """In place, as in a build."""
    files = [scratch / f"small{number}" for number in range(SMALL)]
    seconds = []
    for _ in range(rounds + 1):
        taken = []
        for some in (files[:1], files):
            for file in some:
                shutil.copy("/bin/true", file)
            os.sync()
            taken.append(run((*TOOL, "add-section", "-q", *some)).wall_seconds)
        seconds.append((taken[1] - taken[0]) / (SMALL - 1))
    yield Row(f"{SMALL} small files in one command, each after the first", 1000 * median(seconds[1:]), 8, "ms")


def checks(scratch: Path, rounds: int) -> Iterator[Row]:
    file = corpus_file("bash")
    subprocess.run([*add(scratch, file), "--no-verify"], check=True)
    done = (scratch / "out").rename(scratch / "done")
    results = in_turn({"check": (*TOOL, "check", "-q", done), "add": add(scratch, file, "--no-verify")}, rounds, scratch / "out")
    yield Row("`check` / `add-section --no-verify`, of bash", results["check"].wall_seconds / results["add"].wall_seconds, 1)


def large_files(scratch: Path, rounds: int) -> Iterator[Row]:
    for name in ("libLLVM", "libxul"):
        file, done, size = corpus_file(name), scratch / name, corpus_file(name).stat().st_size
        subprocess.run(add(scratch, file), check=True)
        (scratch / "out").rename(done)
        commands: dict[str, Words] = {
            "readelf": (peer("readelf"), "-wF", file),
            "add-section": add(scratch, file),
            "remove": (*TOOL, "remove", "-q", "-o", scratch / "out", done),
        }
        results = in_turn(commands, rounds, scratch / "out")
        yield Row(f"`add-section` / `readelf -wF`, of {name}", share(results, "add-section", "readelf"), 0.75)
        for command in ("add-section", "remove"):
            yield Row(f"peak memory of `{command}` / size, of {name}", results[command].peak_bytes / size, 1.6)


def share(results: dict[str, Figures], one: str, other: str) -> float:
    return results[one].wall_seconds / results[other].wall_seconds


def links(scratch: Path, rounds: int) -> Iterator[Row]:
    source, compiled, shims = scratch / "main.c", scratch / "main.o", scratch / "shims"
    subprocess.run([*TOOL, "link", "--install", shims], check=True, stdout=subprocess.DEVNULL)
    os.environ.pop("SFRAMEGEN_LINK_OPTIONS", None)
    source.write_text(SOURCE)
    subprocess.run(["gcc", "-O2", "-c", "-o", compiled, source], check=True)
    link = ("gcc", "-o", scratch / "out", compiled)
    results = in_turn({"plain": link, "ours": (*link, "-B", shims)}, 2 * rounds, scratch / "out")
    yield Row("`link` of one object, more than without", results["ours"].wall_seconds - results["plain"].wall_seconds, 0.1, "s")
    make = ("make", "-B", "-s", f"-j{os.cpu_count()}", "-C", scratch, "-f")
    commands: dict[str, Words] = {}
    for name, option in (("plain", ""), ("ours", f"-B {shims}")):
        (scratch / name).write_text(MAKEFILE.format(links=LINKS, shims=option))
        commands[name] = (*make, name)
    results = in_turn(commands, max(1, rounds // 3), scratch / "out")
    yield Row(f"`make` of {LINKS} small programs, with the step / without", share(results, "ours", "plain"), 1.25)


def many_sections(scratch: Path, rounds: int) -> Iterator[Row]:
    source, compiled = scratch / "main.c", scratch / "main"
    source.write_text(SOURCE)
    subprocess.run(["gcc", "-O2", "-o", compiled, source], check=True)
    compiled.write_bytes(with_many_sections(compiled.read_bytes(), SECTIONS))
    figures = in_turn({"add": add(scratch, compiled)}, rounds, scratch / "out")["add"]
    yield Row(f"`add-section` of a file with {SECTIONS:,} sections", figures.wall_seconds, 2, "s")


PARTS: tuple[Callable[[Path, int], Iterator[Row]], ...] = (starts, small_files, checks, large_files, links, many_sections)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="counted runs of each command (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    parser.add_argument(
        "--only", choices=[part.__name__ for part in PARTS], action="append", help="measure this; may be given again"
    )
    options = parser.parse_args()
    if build_kind() != "compiled":
        parser.error("this sframegen is interpreted: measure the compiled build")
    rows: list[Row] = []
    for part in PARTS:
        if not options.only or part.__name__ in options.only:
            with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
                rows += part(Path(scratch), options.rounds)
    cells = [[row.what, f"{row.value:.2f} {row.unit}", f"{row.goal:g} {row.unit}"] for row in rows]
    print(padded([["what", "measured", "goal"], *cells]))
    if options.json:
        measured.write(options.json, {"rounds": options.rounds, "rows": [row._asdict() for row in rows]})


if __name__ == "__main__":
    main()
