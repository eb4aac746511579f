"""Gives copies of this machine's programs and libraries a section, and reports what came of it: `python -m corpus.run [PATH...]`.

Without PATHs every linked ELF file of /usr/bin, /usr/sbin, /usr/lib* and /usr/libexec, and what corpus/fetch got. Nothing of the
machine is changed: each file is copied into a scratch folder, and examined there as corpus/run/examine.py says. Exit status 1:
something was found that may not be.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import stat
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from corpus import measured
from corpus.processes import each_in_a_process
from corpus.run.behaviour import Behaviour
from corpus.run.examine import Examiner, Result
from corpus.run.report import summed
from tests.support.peers import Peers, cache_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

LINKED = {b"\2\0", b"\0\2", b"\3\0", b"\0\3"}  # ET_EXEC and ET_DYN in either byte order
LARGEST_JUDGED_BYTES = 32 << 20  # readelf's text of a larger file takes minutes to judge; tests/real/test_real.py has some
SECONDS_FOR_ONE = 900  # a loop that does not end is a finding, not the end of the run


def machine_paths() -> list[Path]:
    return [Path("/usr/bin"), Path("/usr/sbin"), *sorted(Path("/usr").glob("lib*"))]


def corpus_paths() -> list[Path]:
    corpus = cache_directory() / "corpus"
    lock_file = corpus / "lock.json"
    lock = json.loads(lock_file.read_text()) if lock_file.exists() else {}
    return [corpus / locked["file"] for _, locked in sorted(lock.items())]


def linked_files(paths: Iterable[Path]) -> Iterator[Path]:
    """Programs and libraries among and below the paths: each once, by the first of its names, not by symbolic links."""
    seen = set()
    for path in paths:
        for file in below(path) if path.is_dir() else [path.resolve()]:
            status = file.lstat()
            if stat.S_ISREG(status.st_mode) and (status.st_dev, status.st_ino) not in seen and is_linked(file):
                seen.add((status.st_dev, status.st_ino))
                yield file


def below(directory: Path) -> Iterator[Path]:
    for parent, directories, names in os.walk(directory):
        directories.sort()
        yield from (Path(parent, name) for name in sorted(names))


def is_linked(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            head = stream.read(18)
    except OSError:
        return False
    return head[:4] == b"\x7fELF" and head[16:] in LINKED


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
    parser = argparse.ArgumentParser(prog="python -m corpus.run", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "paths", nargs="*", type=Path, metavar="PATH", help="files and folders; default: the machine and the corpus"
    )
    parser.add_argument("-j", "--jobs", type=int, default=2, help="files at a time (default %(default)s)")
    parser.add_argument("--limit", type=int, metavar="N", help="only N of the files, drawn by the seed")
    parser.add_argument(
        "--sample", type=int, default=20, metavar="N", help="judge the rules of every Nth (default %(default)s; 0: none)"
    )
    parser.add_argument("--seed", type=int, default=1, help="which files are drawn (default %(default)s)")
    measured.add_json_option(parser)
    options = parser.parse_args()

    files = list(linked_files(options.paths or [*machine_paths(), *corpus_paths()]))
    chance = random.Random(options.seed)  # noqa: S311 - the same draw at each run is what it is for
    if options.limit is not None and options.limit < len(files):
        files = sorted(chance.sample(files, options.limit))
    small = [file for file in files if file.stat().st_size <= LARGEST_JUDGED_BYTES]
    to_judge = set(chance.sample(small, -(-len(small) // options.sample))) if options.sample else set()

    behaviour = Behaviour()
    with tempfile.TemporaryDirectory(prefix="corpus-run-") as scratch:
        running = examined(files, to_judge, Examiner(behaviour, Peers()), options.jobs, Path(scratch))
        by_file = {result.file: result for result in with_progress(running, len(files))}
    results = [by_file[str(file)] for file in files]
    measured.write(options.json, summed(results, behaviour))
    return int(any(result.differences for result in results))


if __name__ == "__main__":
    sys.exit(main())
