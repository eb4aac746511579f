"""Profiles programs whose possible stacks are known, and counts those that cannot be: corpus/README.md.

Needs root, a kernel that allows BPF, gcc, g++, clang, musl-tools, golang and rustc; what is missing is left out and listed.
Exit status 1: a stack cannot be, and no guess is marked in it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpus import measured
from corpus.ground_truth.judge import Verdict, judge
from corpus.ground_truth.subjects import OUTPUT, builds

if TYPE_CHECKING:
    from corpus.ground_truth.subjects import Build

FREQUENCY = 1999
SECONDS = 2.0


def main() -> int:
    parser = measured.argument_parser("corpus.ground_truth", __doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="that each program runs (default %(default)s)")
    parser.add_argument("--only", action="append", help="programs of this kind: C, C++, Go...; may be given again")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    missing: dict[str, str] = {}
    for build in builds():
        if options.only and build.subject not in options.only:
            continue
        try:
            rows.append(_row(build, profiled(build, options.seconds)))
        except FileNotFoundError as error:
            missing[f"{build.subject}, {build.name}"] = f"no {error.filename} on this machine"
    sums = {key: sum(row[key] for row in rows) for key in ("samples", "impossible")}
    how = {"frequency": FREQUENCY, "seconds_of_each": options.seconds}
    measured.write(options.json, {**how, **sums, "builds": rows, "not_run": missing})
    return int(bool(sums["impossible"]))


def profiled(build: Build, seconds: float) -> Verdict:
    """Build a program and sample a run of it. FileNotFoundError: its compiler is missing."""
    with tempfile.TemporaryDirectory(prefix="ground-truth-") as folder:
        for command in build.commands:
            subprocess.run(command, cwd=folder, check=True, capture_output=True)
        profile = (sys.executable, "-P", "-m", "sframegen", "profile", "-F", str(FREQUENCY), "-o", "out.folded", "--")
        command = (*profile, f"./{OUTPUT}", str(seconds))
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60 + 10 * seconds)
        return judge(Path(folder, "out.folded").read_text().splitlines(), build.calls)


def _row(build: Build, one: Verdict) -> dict[str, Any]:
    """Samples, except for `whole`, which is a share."""
    return {
        "program": build.subject,
        "build": build.name,
        "samples": one.samples,
        "with_own_frames": one.own,
        "whole": round(one.complete / max(1, one.samples), 3),
        "with_guesses": one.guessed,
        "impossible_guesses": one.guessed_wrong,
        "impossible": one.wrong.total(),
        "impossible_stacks": one.wrong,
    }


if __name__ == "__main__":
    sys.exit(main())
