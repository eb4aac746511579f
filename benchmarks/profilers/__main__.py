"""Compares `sframegen profile` with other profilers: corpus/README.md.

Needs root, and what `make study STUDY=benchmarks.profilers` installs: a profiler or a program that is missing is left out and
named.
"""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

from benchmarks.profilers import complete, map_memory, overhead, per_sample
from benchmarks.profilers.document import Results, records, versions
from benchmarks.profilers.running import samply_allowed
from benchmarks.profilers.samplers import SAMPLERS, missing
from benchmarks.profilers.targets import TARGETS
from corpus import measured
from sframegen.program.build import build_kind

STACKS_SECONDS = 10.0  # in which all profilers sample a program
COST_SECONDS, COST_ROUNDS = 1.5, 12  # of one run of the program that is slowed down
SAMPLE_SECONDS = 4.0  # for each depth, and each process whose maps are measured


def main() -> None:
    parser = measured.argument_parser("benchmarks.profilers", __doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the time that each measurement takes (default %(default)s)")
    parser.add_argument("--only", choices=[one.name for one in TARGETS], action="append", help="this program; may be given again")
    options = parser.parse_args()
    if build_kind() != "compiled":
        parser.error("this sframegen is interpreted: measure the compiled build")
    if os.geteuid():
        parser.error("perf events of all processes, and programs in the kernel, need root")

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so would the profilers
    share = options.share
    targets = [one for one in TARGETS if not options.only or one.name in options.only]
    samplers = [one for one in SAMPLERS if not missing(one)]
    notes = [f"{one.name}: {why}." for one in SAMPLERS if (why := missing(one))]
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="bench-profilers-") as scratch, samply_allowed() as said:
        Path(scratch).chmod(0o755)  # PostgreSQL runs as another user

        def folder(name: str) -> Path:
            made = Path(scratch, name)
            made.mkdir()
            return made

        rounds = max(1, round(COST_ROUNDS * share))
        seconds = SAMPLE_SECONDS * share
        results = Results(
            stacks=list(complete.measure(targets, samplers, STACKS_SECONDS * share, folder("stacks"), failures)),
            costs=list(overhead.measure(samplers, rounds, COST_SECONDS * min(1, share), folder("costs"), failures)),
            samples=[
                *per_sample.depths(seconds, folder("depths"), failures),
                *per_sample.large(2 * seconds, folder("large"), failures),
            ],
            files=list(map_memory.files(failures)),
            processes=[
                *map_memory.small_libraries(seconds, folder("libraries"), failures),
                *map_memory.large(seconds, folder("mapped"), failures),
            ],
        )
    notes += [*filter(None, [said]), *dict.fromkeys(failures)]
    measured.write(options.json, {**versions(), "nice": os.nice(0), "notes": notes, **records(results)})


if __name__ == "__main__":
    main()
