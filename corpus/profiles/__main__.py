"""Samples programs with the kernel program, and compares each stack with gdb's and sframegen stack's: corpus/README.md.

Needs root, gdb, gcc, g++ and the programs of workloads.py; those that are missing are left out and reported. Exit status 1: a stack
differs.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from corpus.profiles.held_samples import HeldSamples
from corpus.profiles.report import markdown
from corpus.profiles.trial import Trial
from corpus.profiles.workloads import WORKLOADS
from corpus.report_pages import write_or_print
from corpus.stacks.debugger import Gdb
from corpus.stacks.report import versions
from sframegen import SframegenError

if TYPE_CHECKING:
    from corpus.profiles.verdict import Row

SAMPLES = sum(one.samples for one in WORKLOADS)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m corpus.profiles", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--samples", type=int, default=SAMPLES, help="of all workloads (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="which moments (default %(default)s)")
    parser.add_argument("--only", choices=[one.name for one in WORKLOADS], action="append", help="may be given again")
    parser.add_argument("--report", type=Path, help="write the report to this file, not to standard output")
    options = parser.parse_args()

    try:
        held = HeldSamples()
    except SframegenError as error:
        sys.exit(str(error))
    started = time.monotonic()
    chosen = [one for one in WORKLOADS if not options.only or one.name in options.only]
    share = options.samples / sum(one.samples for one in chosen)
    rows: list[Row] = []
    left_out: list[str] = []
    with tempfile.TemporaryDirectory(prefix="corpus-profiles-") as scratch, held:
        folder = Path(scratch)
        for workload in chosen:
            before = time.monotonic()
            try:
                workload.prepare(folder)
                workload.command(folder, random.Random(options.seed))  # noqa: S311 - which programs there are
            except (OSError, KeyError, StopIteration, subprocess.SubprocessError) as error:
                left_out.append(f"{workload.name}: {error}")
                continue
            with Gdb() as gdb:
                row = Trial(workload, folder, options.seed, held).run(gdb, max(1, round(workload.samples * share)))
            rows.append(row)
            seen = f"{row.samples} samples, {row.equal_gdb} equal to gdb's, {row.equal_stack} to sframegen stack's"
            took = f"{time.monotonic() - before:.0f} s"
            print(f"{row.workload}: {seen}, {len(row.differences)} differ, {dict(row.reasons)}; {took}", file=sys.stderr)
            for difference in row.differences[:20]:
                print(f"    {difference}", file=sys.stderr, flush=True)
    about = f"`python -m corpus.profiles --samples {options.samples} --seed {options.seed}`, {versions()}"
    text = markdown(rows, f"{about}; {time.monotonic() - started:.0f} s", left_out)
    write_or_print(options.report, text)
    return int(not rows or any(row.differences for row in rows))


if __name__ == "__main__":
    sys.exit(main())
