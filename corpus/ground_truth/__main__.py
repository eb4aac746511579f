"""Profiles programs whose possible stacks are known, and counts those that cannot be: corpus/README.md.

Needs root, a kernel that allows BPF, gcc, g++, clang, musl-tools, golang and rustc; what is missing is left out and listed.
Exit status 1: a stack cannot be, and no guess is marked in it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from corpus.ground_truth.judge import Verdict, judge
from corpus.ground_truth.subjects import OUTPUT, Build, builds
from corpus.merge.report import table
from corpus.report_pages import linux, write_or_print, write_page

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD = Path(__file__).with_name("head.md")
FREQUENCY = 1999
SECONDS = 2.0
COLUMNS = ("program", "build", "samples", "with own frames", "whole", "with guesses", "guesses that cannot be", "cannot be")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m corpus.ground_truth", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=SECONDS, help="that each program runs (default %(default)s)")
    parser.add_argument("--only", action="append", help="programs of this kind: C, C++, Go...; may be given again")
    parser.add_argument("--report", type=Path, help="write the report to this file, not to standard output")
    options = parser.parse_args()
    verdicts: list[tuple[Build, Verdict]] = []
    missing: dict[str, str] = {}
    for build in builds():
        if options.only and build.subject not in options.only:
            continue
        try:
            verdicts.append((build, profiled(build, options.seconds)))
        except FileNotFoundError as error:
            missing[f"{build.subject}, {build.name}"] = f"no {error.filename} on this machine"
    text = "\n".join([HEAD.read_text(), *_page(verdicts, missing, options.seconds)]) + "\n"
    if options.report:
        write_page(options.report, text)
    else:
        write_or_print(None, text)
    wrong = [
        f"{build.subject}, {build.name}: {number} of {stack}" for build, one in verdicts for stack, number in one.wrong.items()
    ]
    for line in wrong:
        print(line, file=sys.stderr)
    return int(bool(wrong))


def profiled(build: Build, seconds: float) -> Verdict:
    """Build a program and sample a run of it. FileNotFoundError: its compiler is missing."""
    with tempfile.TemporaryDirectory(prefix="ground-truth-") as folder:
        for command in build.commands:
            subprocess.run(command, cwd=folder, check=True, capture_output=True)
        profile = (sys.executable, "-P", "-m", "sframegen", "profile", "-F", str(FREQUENCY), "-o", "out.folded", "--")
        command = (*profile, f"./{OUTPUT}", str(seconds))
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60 + 10 * seconds)
        return judge(Path(folder, "out.folded").read_text().splitlines(), build.calls)


def _page(verdicts: list[tuple[Build, Verdict]], missing: dict[str, str], seconds: float) -> Iterator[str]:
    load = os.getloadavg()[0]
    yield f"{linux()}, {os.cpu_count()} CPUs, load at the end {load:.1f}; {FREQUENCY} Hz, {seconds:g} s each.\n"
    samples = sum(one.samples for _, one in verdicts)
    wrong = sum(one.wrong.total() for _, one in verdicts)
    yield f"{samples:,} samples in {len(verdicts)} builds: **{wrong} stacks that cannot be** without a mark.\n"
    yield from table(COLUMNS, [_cells(build, one) for build, one in verdicts])
    yield from (f"\nNot run: {name}: {why}." for name, why in missing.items())


def _cells(build: Build, one: Verdict) -> tuple[str, ...]:
    numbers = (one.samples, one.own, one.guessed, one.guessed_wrong, one.wrong.total())
    samples, own, guessed, guessed_wrong, wrong = map("{:,}".format, numbers)
    return build.subject, build.name, samples, own, f"{one.complete / max(1, one.samples):.1%}", guessed, guessed_wrong, wrong


if __name__ == "__main__":
    sys.exit(main())
