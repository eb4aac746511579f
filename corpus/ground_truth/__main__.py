"""Profiles programs whose possible stacks are known, and counts those that cannot be: corpus/README.md.

Needs root, a kernel that allows BPF, gcc, g++, clang, musl-tools, golang, rustc, python3.12; what is missing is left out
and listed. Exit status 1: a stack cannot be, and no guess is marked in it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from errno import ENOENT
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpus import measured
from corpus.ground_truth.judge import Verdict, judge
from corpus.ground_truth.subjects import builds
from corpus.ground_truth.walkers import FREQUENCY, STOPS, WALKERS

if TYPE_CHECKING:
    from corpus.ground_truth.subjects import Build

SECONDS = 2.0
NOT_FOUND = 127  # exit code of a shell, and of a shim of pyenv, for a program that is not there


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
            rows += (_row(build, walker, one) for walker, one in walked(build, options.seconds).items())
        except FileNotFoundError as error:
            missing[f"{build.subject}, {build.name}"] = f"no {error.filename} on this machine"
    sums = {walker: _sums([row for row in rows if row["walker"] == walker]) for walker in WALKERS}
    how = {"frequency": FREQUENCY, "seconds_of_each": options.seconds, "stops_of_each": STOPS}
    measured.write(options.json, {**how, "walkers": sums, "builds": rows, "not_run": missing})
    return int(any(row["impossible"] for row in rows))


def walked(build: Build, seconds: float) -> dict[str, Verdict]:
    """Build a program, and run it once for each walker. FileNotFoundError: its compiler is missing."""
    with tempfile.TemporaryDirectory(prefix="ground-truth-") as folder:
        for command in build.commands:
            done = subprocess.run(command, cwd=folder, check=False, capture_output=True)
            if done.returncode == NOT_FOUND:
                raise FileNotFoundError(ENOENT, "not found by a program of this name", command[0])
            done.check_returncode()
        return {name: judge(walk(Path(folder), seconds), build.calls) for name, walk in WALKERS.items()}


def _row(build: Build, walker: str, one: Verdict) -> dict[str, Any]:
    """Samples, except for `whole_percent`. A thread at a stop counts as a sample of `stack`."""
    return {
        "program": build.subject,
        "build": build.name,
        "walker": walker,
        "samples": one.samples,
        "with_own_frames": one.own,
        "whole": one.complete,
        "whole_percent": _percent(one.complete, one.samples),
        "with_guesses": one.guessed,
        "impossible_guesses": one.guessed_wrong,
        "impossible": one.wrong.total(),
        "impossible_stacks": one.wrong,
    }


def _sums(rows: list[dict[str, Any]]) -> dict[str, float]:
    sums = {key: sum(row[key] for row in rows) for key in ("samples", "whole", "with_guesses", "impossible_guesses", "impossible")}
    return {**sums, "whole_percent": _percent(sums["whole"], sums["samples"])}


def _percent(part: int, total: int) -> float:
    return round(100 * part / max(1, total), 1)


if __name__ == "__main__":
    sys.exit(main())
