"""Surveys the packages of survey.toml with `sframegen fleet run`, and reports: corpus/README.md.

Exit status 1: a file that was looked at again with others' tools is not as the survey says, or a package failed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from corpus import measured
from corpus.fetch.__main__ import cache_directory
from corpus.survey.judged_files import judge, sample
from corpus.survey.survey_packages import MANIFEST, fetched
from corpus.survey.survey_report import files_of, growth, packages_of, summed
from sframegen.fleet.result_rows import RowOutcome

if TYPE_CHECKING:
    from collections.abc import Iterable

    from corpus.survey.judged_files import Judged
    from corpus.survey.survey_packages import Fetched

FLEET = (sys.executable, "-P", "-m", "sframegen", "fleet")


def main() -> int:
    parser = measured.argument_parser("corpus.survey", __doc__)
    parser.add_argument("--manifest", type=Path, default=MANIFEST)
    parser.add_argument("--output", type=Path, default=cache_directory() / "survey" / "results", help="where results are left")
    parser.add_argument("--rewrite-up-to", metavar="MB", type=float, default=1, help="also rewrite packages up to this size")
    parser.add_argument("--judge", metavar="N", type=int, default=60, help="files to look at again")
    parser.add_argument("--from-results", action="store_true", help="report what the last run left")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    groups = list(fetched(options.manifest))
    packages = [package for group in groups for package in group.packages]
    options.output.mkdir(parents=True, exist_ok=True)
    surveyed, rewritten = options.output / "survey", options.output / "rewrite"
    small = [package for package in packages if package.file.stat().st_size <= options.rewrite_up_to * 1e6]
    if not options.from_results:
        run(packages, surveyed, "survey")
        run(small, rewritten, "rewrite")
    judged = judge_all(surveyed, packages, options.judge, options.seed)
    what_ran = json.loads((surveyed / "run.json").read_bytes())  # may have been another version than this one: --from-results
    rows = packages_of(surveyed)
    results = {
        "run_on": what_ran["started"][:10],
        **summed(groups, rows, files_of(surveyed)),
        "rewritten": growth(packages_of(rewritten)),
        "judged_files": len(judged),
        "judged_code_bytes": sum(one.code_bytes for one in judged),
        "judged_differences": [f"{one.path}: {fault}" for one in judged for fault in one.faults],
    }
    measured.write(options.json, results, what_ran["sframegen"])
    failed = any(row.outcome == RowOutcome.FAILED for row in rows)
    return int(failed or any(one.faults for one in judged))


def run(packages: Iterable[Fetched], output: Path, mode: str) -> None:
    """Exit status 1 only says that something is refused: that is in the results."""
    shutil.rmtree(output, ignore_errors=True)  # what another state of sframegen found, for its version may be the same
    # A directory of their own, so that packages have short names in the results, and the cache may have others.
    chosen = output.with_name(f"{output.name}-packages")
    shutil.rmtree(chosen, ignore_errors=True)
    for package in packages:
        name = chosen / package.file.parent.name / package.file.name
        name.parent.mkdir(parents=True, exist_ok=True)
        os.link(package.file, name)
    done = subprocess.run([*FLEET, "run", str(chosen), "--output", str(output), "--mode", mode], check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(done.returncode)


def judge_all(surveyed: Path, packages: Iterable[Fetched], number: int, seed: int) -> list[Judged]:
    files = {package.file.name: package.file for package in packages}
    judged = []
    for row in sample(files_of(surveyed), number, seed):
        with tempfile.TemporaryDirectory() as scratch:
            judged.append(judge(row, files[Path(row.package).name], Path(scratch)))
    return judged


if __name__ == "__main__":
    sys.exit(main())
