"""Compares the time off the CPU that sframegen profile reports with the clocks of threads and the scheduler: corpus/README.md.

The head of the report, docs/reports/off-cpu.md, says what is run. Needs root, a kernel that allows BPF, and gcc.
Exit status 1: times differ by more than they may.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.switches import figures
from corpus.off_cpu.waits import Run, compile_program, run
from corpus.report_pages import linux, write_or_print, write_page
from sframegen.profile.packed_frames import OffCpu

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD = Path(__file__).with_name("head.md")
SECONDS = 20.0
MODES = ("--off-cpu", "--wall")
MOST = 0.01  # of the time that passed
SECOND = 1e9


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m corpus.off_cpu", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each run (default %(default)s)")
    parser.add_argument("--folder", type=Path, help="on the disk that is waited for (default: a new one in the working directory)")
    parser.add_argument(
        "--cost", metavar="ROUNDS", type=int, default=0, help="measure what it costs, too, as benchmarks.switches does"
    )
    parser.add_argument("--report", type=Path, help="write the report to this file, not to standard output")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="off-cpu-", dir=options.folder or Path.cwd()) as scratch:
        program = compile_program(Path(scratch))
        runs = {mode: run(program, options.seconds, mode, Path(scratch)) for mode in MODES}
    text = "\n".join([HEAD.read_text(), *_page(runs, options.seconds), *_cost(options.cost)]) + "\n"
    if options.report:
        write_page(options.report, text)
    else:
        write_or_print(None, text)
    faults = [fault for mode, one in runs.items() for fault in faults_of(mode, one)]
    for fault in faults:
        print(fault, file=sys.stderr)
    return int(bool(faults))


def faults_of(mode: str, one: Run) -> Iterator[str]:
    for waited in one.waits:
        stolen = one.stolen / waited.passed
        if not -MOST - stolen <= waited.error <= MOST:
            yield f"{mode}: {waited.name} ({waited.tid}): {waited.error:+.2%}, with {stolen:.2%} stolen"


def _page(runs: dict[str, Run], seconds: float) -> Iterator[str]:
    load = os.getloadavg()[0]
    yield f"{linux()}, {os.cpu_count()} CPUs; load at the end {load:.1f}; {seconds:g} s each."
    for mode, one in runs.items():
        stolen = one.stolen / SECOND
        yield f"\n## `{mode}`\n\nThe hypervisor took {stolen:.2f} s of CPU time in this run.\n"
        on = mode == "--wall"
        reasons = [reason.words for reason in OffCpu]
        yield f"| thread | passed, s | CPU, s |{' samples, s |' * on} {' | '.join(reasons)} | error | ready, s | scheduler's |"
        yield "| --- |" + " --- |" * (2 + on + len(reasons) + 3)
        for waited in one.waits:
            times = [waited.passed, waited.ran, *[waited.on] * on, *(waited.off[reason] for reason in OffCpu)]
            numbers = " | ".join(f"{time / SECOND:.3f}" for time in times)
            ready = f"{waited.ready / SECOND:.3f} | {waited.delayed / SECOND:.3f}"
            yield f"| {waited.name} | {numbers} | {waited.error:+.2%} | {ready} |"
        yield ""
        yield from (f"    {line}" for line in one.said)
    faults = [fault for mode, one in runs.items() for fault in faults_of(mode, one)]
    yield f"\nFaults: {len(faults) or 'none'}."
    yield from (f"- {fault}" for fault in faults)


def _cost(rounds: int) -> Iterator[str]:
    if rounds:
        yield "\n## Cost\n\nTwo processes wake each other as often as they can (`python -m benchmarks.switches`):\n"
        yield from (f"- {line}" for line in figures(rounds))


if __name__ == "__main__":
    sys.exit(main())
