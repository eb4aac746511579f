"""Runs files that other tools changed before or after add-section, and compares: corpus/README.md.

Exit status 1: a program breaks with the section and not without it, or `sframegen check` does not say so, or the like.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import asdict
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from corpus import measured
from corpus.fetch.__main__ import FetchError
from corpus.processes import each_in_a_process
from corpus.tools.invocations import rows
from corpus.tools.obtaining import of_pypi, of_suite
from corpus.tools.subjects import compiled, of_packages
from corpus.tools.tools_report import Result, summed
from corpus.tools.trial import BREAKS, Given, given, tried

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from corpus.tools.invocations import Row
    from corpus.tools.obtaining import Provider
    from corpus.tools.subjects import Subject

MANIFEST = Path(__file__).with_name("tools.toml")
SECONDS_OF_JOB = 300


class Job(NamedTuple):
    start: Given
    row: Row


def providers(manifest: Mapping[str, Mapping[str, Mapping[str, Mapping[str, str]]]]) -> Iterator[Provider]:
    """Those that this machine can get."""
    for suite, packages in manifest["suites"].items():
        yield of_suite(suite, packages)
    for package, versions in manifest["pypi"].items():
        for version in versions:
            yield of_pypi(package, version)


def prepared(subjects: Sequence[Subject], scratch: Path) -> tuple[list[Given], dict[str, str]]:
    """Those that can be tried, and why others cannot."""
    starts, left_out = [], {}
    for number, subject in enumerate(subjects):
        folder = scratch / "given" / str(number)
        folder.mkdir(parents=True)
        start = given(subject, folder)
        if isinstance(start, Given):
            starts.append(start)
        else:
            left_out[subject.name] = start
            print(f"{subject.name} is left out: {start}", file=sys.stderr, flush=True)
    return starts, left_out


def results(jobs: Sequence[Job], at_once: int, scratch: Path) -> Iterator[Result]:
    def work(job: Job, folder: Path) -> list[dict[str, object]]:
        return [asdict(verdict) for verdict in tried(job.start, job.row, folder)]

    done = each_in_a_process(jobs, work, at_once=at_once, seconds=SECONDS_OF_JOB, scratch=scratch)
    for number, (job, verdicts, death) in enumerate(done, 1):
        subject, row = job.start.subject, job.row
        for verdict in verdicts or [{"order": "", "mark": BREAKS, "why": death, "faults": ["the job has no end"]}]:
            result = Result(subject.name, subject.kind, row.tools, row.invocation.name, **verdict)
            if result.is_fault:
                print(f"{result.line}", file=sys.stderr, flush=True)
            yield result
        if number % 100 == 0:
            print(f"{number} of {len(jobs)} jobs", file=sys.stderr, flush=True)


def main() -> int:
    parser = measured.argument_parser("corpus.tools", __doc__)
    parser.add_argument("--files", metavar="PATTERN", default="*", help="only files whose `KIND: NAME` matches")
    parser.add_argument("--tools", metavar="PATTERN", default="*", help="only rows whose `TOOLS: INVOCATION` matches")
    parser.add_argument("--limit", type=int, metavar="N", help="only N of the jobs, drawn by the seed")
    parser.add_argument("--seed", type=int, default=1, help="which jobs are drawn (default %(default)s)")
    parser.add_argument("-j", "--jobs", type=int, default=2, help="jobs at a time (default %(default)s)")
    options = parser.parse_args()
    manifest = tomllib.loads(MANIFEST.read_text())
    try:
        chosen = list(providers(manifest))
        packaged = list(of_packages(manifest))
    except (FetchError, OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"corpus.tools: {error}") from error
    with tempfile.TemporaryDirectory(prefix="corpus-tools-") as temporary:
        scratch = Path(temporary)
        linkers = next(provider for provider in chosen if "ld.lld" in provider.commands)
        wanted = partial(fnmatchcase, pat=options.files)
        subjects = [s for s in packaged if wanted(f"{s.kind}: {s.name}")]
        subjects += compiled(linkers, scratch, wanted)
        starts, left_out = prepared(subjects, scratch)
        tried_rows = [row for row in rows(chosen) if fnmatchcase(row.name, options.tools)]
        jobs = [Job(start, row) for start in starts for row in tried_rows]
        possible = len(jobs)
        if options.limit is not None and options.limit < len(jobs):
            jobs = random.Random(options.seed).sample(jobs, options.limit)  # noqa: S311 - the same draw at each run
        places = {(row.tools, row.invocation.name): place for place, row in enumerate(tried_rows)}
        found = sorted(results(jobs, options.jobs, scratch), key=lambda result: places[result.tools, result.invocation])
    run = {"jobs": len(jobs), "possible_jobs": possible, "seed": options.seed, "files": len(starts)}
    measured.write(options.json, run | summed(found, left_out))
    return int(any(result.is_fault for result in found))


if __name__ == "__main__":
    sys.exit(main())
