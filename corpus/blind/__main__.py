"""Hides the CFI of real files, finds it again by their instructions, and compares both at every byte.

NAME: a file that docs/measured/blind.json has, or a path; without any, all that are there: the machine's, the corpus', and
libraries compiled by what compilers there are. Exit status 1: of what was found less than 99.9 % is right somewhere, or less
than 85 % of the code was found again.
"""

from __future__ import annotations

import os
import sys
import tempfile
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from corpus import measured
from corpus.blind.files import File, compiled, real_files
from corpus.blind.report import record, speed
from corpus.blind.trial import try_blind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from corpus.blind.trial import Trial

RIGHT, RECOVERED = 0.999, 0.85
TIMED = ("cc1plus", "libcrypto, arm64")


def is_good(trial: Trial) -> bool:
    found = (trial.ranges_known, trial.nothing_known)
    recovered = trial.ranges_known.emitted >= RECOVERED * trial.ranges_known.code_bytes
    return recovered and all(one.right >= RIGHT * (one.right + one.different) for one in found)


def main() -> int:
    parser = measured.argument_parser("corpus.blind", __doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="processes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        files: Iterable[File] = chain(real_files(), compiled(Path(scratch)))
        if options.names:
            known = {file.name: file for file in real_files()}
            files = [known.get(name) or File(Path(name).name, Path(name)) for name in options.names]
        trials, pairs = [], []
        for file in files:
            trial = try_blind(file, options.jobs)
            trials.append(trial)
            print(record(trial), file=sys.stderr, flush=True)
            if file.name in TIMED:
                pairs.append((try_blind(file, 1), trial if options.jobs > 1 else try_blind(file, 2)))
    measured.write(options.json, {"files": list(map(record, trials)), "speed": [speed(one, two) for one, two in pairs]})
    return int(not all(map(is_good, trials)))


if __name__ == "__main__":
    sys.exit(main())
