"""Stack traces of the own process: nanoseconds for each frame, beside glibc, libgcc, both libunwinds and frame pointers.

Sections are added to the program and to copies of its libraries. Medians of 15 rounds, walkers in turn, and of the runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from corpus import measured
from sframegen import add_section

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

HERE = Path(__file__).parent
LIBRARIES = ("libc.so.6", "libgcc_s.so.1", "libunwind.so.8", "libunwind.so.1")
DEPTHS, SURROUNDING = (5, 30, 95), 5  # functions of the benchmark, and those that call the first of them and walk
MANY_LIBRARIES = 200
OURS = ("sframe_backtrace",)
WALKERS = (
    *OURS,
    "backtrace",
    "_Unwind_Backtrace",
    "LLVM's _Unwind_Backtrace",
    "unw_backtrace",
    "libunwind's cursor",
    "frame pointers",
)
FIRST_LOOK_UP, FIRST_CALL, PAGE, THREADS = "first look-up", "first call", "page", ("1", "8")


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


def measure(home: Path, runs: int) -> Iterable[tuple[str, int, float]]:
    """Yield a name, the depth and nanoseconds for each frame; of a first call, for all of it."""
    program, many = build(home), build_many(home)
    for _ in range(runs):
        for depth in DEPTHS:
            for kind in ("hot", "cold"):
                for name, _, each in lines_of(program, kind, str(depth)):
                    yield name, depth, each
            for libraries in ([], many):
                for name, frames, each in lines_of(program, "first", str(depth), preloaded=libraries):
                    yield f"{name}, {len(libraries)} more libraries", depth, frames * each
        for threads in THREADS:
            yield from lines_of(program, "threads", threads)


def main() -> None:
    parser = measured.argument_parser("benchmarks.backtrace", __doc__)
    parser.add_argument("--runs", type=int, default=5, help="of each kind (default %(default)s; a run takes about four seconds)")
    options = parser.parse_args()
    taken: dict[tuple[str, int], list[float]] = defaultdict(list)
    with TemporaryDirectory() as home:
        for name, depth, nanoseconds in measure(Path(home), options.runs):
            taken[name, depth].append(nanoseconds)
    found = {key: median(values) for key, values in taken.items()}
    measured.write(options.json, {"runs": options.runs, **records(found)})
    if options.json:
        from benchmarks.plot import draw_bars  # noqa: PLC0415 - matplotlib, which only pictures need

        draw_bars("Nanoseconds for each frame", panels(found), OURS, options.json.with_name("own-stack.svg"))


def records(found: Mapping[tuple[str, int], float]) -> dict[str, object]:
    """Nanoseconds for each frame, by depth of the stack, except for first calls: microseconds for the whole trace."""

    def rows(names: Iterable[str], unit: float = 1.0) -> list[dict[str, object]]:
        return [
            {"name": name} | {f"{depth + SURROUNDING} frames": round(found[name, depth] / unit, 1) for depth in DEPTHS}
            for name in names
            if (name, DEPTHS[0]) in found
        ]

    return {
        "ns_for_a_frame": rows([*WALKERS, FIRST_LOOK_UP]),
        "us_for_the_first_trace": rows([f"{FIRST_CALL}, {count} more libraries" for count in (0, MANY_LIBRARIES)], 1000.0),
        "ns_to_ask_whether_a_page_is_readable": round(median(found[PAGE, depth] for depth in DEPTHS)),
        "ns_for_a_frame_by_threads": {name: round(each, 1) for (name, _), each in found.items() if name.endswith(" threads")},
    }


def panels(found: Mapping[tuple[str, int], float]) -> dict[str, dict[str, float]]:
    """By the number of frames, and by walker."""
    shown = {depth: [name for name in WALKERS if (name, depth) in found] for depth in DEPTHS}
    return {f"{depth + SURROUNDING} frames": {name: found[name, depth] for name in names} for depth, names in shown.items()}


if __name__ == "__main__":
    main()
