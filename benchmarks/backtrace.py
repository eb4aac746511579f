"""Stack traces of the own process: nanoseconds for each frame, beside glibc, libgcc, libunwind and frame pointers.

Sections are added to the program and to copies of its libraries. Medians of 15 rounds, walkers in turn, and of the runs.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from corpus.report_pages import write_or_print
from corpus.run.report import table
from sframegen import add_section

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

HERE = Path(__file__).parent
LIBRARIES = ("libc.so.6", "libgcc_s.so.1", "libunwind.so.8")
# functions of the benchmark below those of its start
DEPTHS = (5, 30, 95)
RUNS = 5
MANY_LIBRARIES = 200
OURS = ("sframe_backtrace",)
WALKERS = (*OURS, "backtrace", "_Unwind_Backtrace", "unw_backtrace", "libunwind's cursor", "frame pointers")
HEAD = """# What a stack trace of the own process costs

`make bench-backtrace` (`benchmarks/backtrace`) writes this document. One program walks its stack with each of these in turn:
medians of 15 rounds, and of five runs. The program and its libraries have sections. It is built with frame pointers, which only
their own row uses.

**empty cache**: the first look-up of each PC. **first call**: all of the first trace in a process, with the libraries that it
loads. **threads**: that many at a time, each with its own CPU time.

![Nanoseconds for each frame, of sframe_backtrace, backtrace, _Unwind_Backtrace, unw_backtrace](own-stack.svg)
"""


def build(home: Path) -> Path:
    program = home / "backtrace"
    include = HERE.parent / "sframegen/backtrace"
    flags = ["-O2", "-fno-omit-frame-pointer", f"-I{include}"]
    subprocess.run(["gcc", *flags, "-o", program, HERE / "backtrace.c", "-ldl", "-lpthread"], check=True)
    add_section(program)
    for name in LIBRARIES:
        printed = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
        path = Path(printed.stdout.strip())
        if not path.is_absolute():
            print(f"no {name}: its walkers are left out", file=sys.stderr)
            continue
        shutil.copy(path, home / name)
        add_section(home / name)
    return program


def build_many(home: Path) -> list[Path]:
    """Copies of a small library, each with a section: to be loaded at the start."""
    library = home / "many.so"
    subprocess.run(
        ["gcc", "-O2", "-shared", "-fPIC", "-x", "c", "-o", library, "-"], input=b"int one(void) { return 1; }", check=True
    )
    add_section(library)
    return [Path(shutil.copy(library, home / f"many{number}.so")) for number in range(MANY_LIBRARIES)]


def lines_of(program: Path, *arguments: str, preloaded: Sequence[Path] = ()) -> Iterable[tuple[str, int, float]]:
    environ = {**os.environ, "LD_LIBRARY_PATH": str(program.parent), "LD_PRELOAD": ":".join(map(str, preloaded))}
    done = subprocess.run([program, *arguments], env=environ, capture_output=True, text=True, check=True)
    for line in done.stdout.splitlines():
        name, frames, nanoseconds = line.split("\t")
        yield name, int(frames), float(nanoseconds)


def measure(home: Path) -> Iterable[tuple[str, int, float]]:
    """Yield a name, the number of frames and nanoseconds for each frame; of a first call, for all of it."""
    program, many = build(home), build_many(home)
    for _ in range(RUNS):
        for depth in DEPTHS:
            yield from lines_of(program, "hot", str(depth))
            yield from lines_of(program, "cold", str(depth))
            for libraries in ([], many):
                for name, frames, each in lines_of(program, "first", str(depth), preloaded=libraries):
                    yield f"{name}, {len(libraries)} more libraries, whole", frames, frames * each
        for threads in ("1", "8"):
            yield from lines_of(program, "threads", threads)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backtrace", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--report", type=Path, help="write a page to this file, and its picture beside it, not to standard output")
    options = parser.parse_args()
    taken: dict[tuple[str, int], list[float]] = defaultdict(list)
    load = os.getloadavg()[0]
    with TemporaryDirectory() as home:
        for name, frames, nanoseconds in measure(Path(home)):
            taken[name, frames].append(nanoseconds)
    found = {key: median(values) for key, values in taken.items()}
    machine = f"{os.cpu_count()} cores, {platform.machine()}; load average {load:.1f} before, {os.getloadavg()[0]:.1f} after it."
    write_or_print(options.report, page(found, machine))
    if options.report:
        from benchmarks.plot import draw_bars  # noqa: PLC0415 - matplotlib, which only pictures need

        draw_bars("Nanoseconds for each frame", panels(found), OURS, options.report.with_suffix(""))


def page(found: Mapping[tuple[str, int], float], machine: str) -> str:
    rows = [(name, frames, f"{nanoseconds:,.1f}") for (name, frames), nanoseconds in found.items()]
    return "\n".join([HEAD, machine, "", *table(("", "frames", "ns for each frame"), rows)])


def panels(found: Mapping[tuple[str, int], float]) -> dict[str, dict[str, float]]:
    """By the number of frames, and by walker."""
    shown: dict[str, dict[str, float]] = {}
    for (name, frames), nanoseconds in found.items():
        if name in WALKERS:
            shown.setdefault(f"{frames} frames", {})[name] = nanoseconds
    return shown


if __name__ == "__main__":
    main()
