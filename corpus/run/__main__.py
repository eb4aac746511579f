"""Gives copies of this machine's programs and libraries a section, and reports what came of it: `python -m corpus.run [PATH...]`.

Without PATHs every linked ELF file of /usr/bin, /usr/sbin, /usr/lib* and /usr/libexec, and what corpus/fetch got. Nothing of the
machine is changed: each file is copied into a scratch folder, and examined there as corpus/run/examine.py says. Exit status 1:
something was found that may not be.
"""

from __future__ import annotations

import random
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from corpus import measured
from corpus.linked_files import corpus_files, linked_files
from corpus.processes import each_in_a_process
from corpus.run.behaviour import Behaviour
from corpus.run.examine import Examiner, Result
from corpus.run.random_packages import drawn_files
from corpus.run.report import summed
from tests.support.peers import Peers

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence

LARGEST_JUDGED_BYTES = 32 << 20  # readelf's text of a larger file takes minutes to judge; tests/real/test_real.py has some
SECONDS_FOR_ONE = 900  # a loop that does not end is a finding, not the end of the run


def machine_paths() -> list[Path]:
    return [Path("/usr/bin"), Path("/usr/sbin"), *sorted(Path("/usr").glob("lib*"))]


def examined(files: Sequence[Path], judged: set[Path], examiner: Examiner, jobs: int, scratch: Path) -> Iterator[Result]:
    def work(file: Path, directory: Path) -> dict[str, object]:
        return asdict(examiner.examine(file, directory, judge=file in judged))

    for file, result, death in each_in_a_process(files, work, at_once=jobs, seconds=SECONDS_FOR_ONE, scratch=scratch):
        yield Result(**result) if result else Result(str(file), file.stat().st_size, "crashed", differences=[death])


def with_progress(results: Iterable[Result], count: int) -> Iterator[Result]:
    for number, result in enumerate(results, 1):
        if sys.stderr.isatty():
            print(f"\r{number} of {count}", end="\n" * (number == count), file=sys.stderr, flush=True)
        yield result


def main() -> int:
    parser = measured.argument_parser("corpus.run", __doc__)
    parser.add_argument(
        "paths", nargs="*", type=Path, metavar="PATH", help="files and folders; default: the machine and the corpus"
    )
    parser.add_argument("-j", "--jobs", type=int, default=2, help="files at a time (default %(default)s)")
    parser.add_argument("--limit", type=int, metavar="N", help="only N of the files, drawn by the seed")
    parser.add_argument(
        "--sample", type=int, default=20, metavar="N", help="judge the rules of every Nth (default %(default)s; 0: none)"
    )
    parser.add_argument(
        "--random", type=int, metavar="N", help="N files of random packages for each of three architectures instead"
    )
    parser.add_argument("--seed", type=int, default=1, help="which files are drawn (default %(default)s)")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="corpus-run-") as scratch:
        if options.random:
            files = list(drawn_files(options.random, options.seed, Path(scratch)))
        else:
            files = list(linked_files(options.paths or [*machine_paths(), *corpus_files()]))
        return run(files, options, Path(scratch))


def run(files: list[Path], options: argparse.Namespace, scratch: Path) -> int:
    """Examine the files, and write what came of them. Returns the exit status."""
    chance = random.Random(options.seed)  # noqa: S311 - the same draw at each run is what it is for
    if options.limit is not None and options.limit < len(files):
        files = sorted(chance.sample(files, options.limit))
    small = [file for file in files if file.stat().st_size <= LARGEST_JUDGED_BYTES]
    to_judge = set(chance.sample(small, -(-len(small) // options.sample))) if options.sample else set()

    behaviour = Behaviour()
    running = examined(files, to_judge, Examiner(behaviour, Peers()), options.jobs, scratch)
    by_file = {result.file: result for result in with_progress(running, len(files))}
    results = [by_file[str(file)] for file in files]
    measured.write(options.json, summed(results, behaviour))
    return int(any(result.differences for result in results))


if __name__ == "__main__":
    sys.exit(main())
