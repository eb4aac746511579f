"""Holds the CFI of all programs and libraries of a machine against their instructions: `python -m corpus.contradictions [PATH...]`.

Of PATHs; without any, of /usr, /opt and the corpus. What is found is kept in a file, a line for each that was looked at; those that
are in it are not looked at again. Prints each place where the CFI is contradicted, with the instructions around it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from corpus import measured
from corpus.contradictions.found import look, read, written
from corpus.contradictions.report import results
from corpus.linked_files import corpus_files, linked_files
from sframegen.program.workers import run_all


def main() -> int:
    parser = measured.argument_parser("corpus.contradictions", __doc__)
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--kept", type=Path, default=Path("contradictions.jsonl"), help="the file of what is found")
    parser.add_argument("--up-to", type=int, default=1 << 40, metavar="BYTES", help="larger files are left out")
    options = parser.parse_args()
    options.kept.touch()
    known = {found.file: found for found in read(options.kept.read_text().splitlines())}
    paths = options.paths or [Path("/usr"), Path("/opt"), *corpus_files()]
    sizes = {file: file.stat().st_size for file in linked_files(paths)}
    wanted = sorted((file for file, size in sizes.items() if size <= options.up_to), key=sizes.__getitem__)
    missing = [file for file in wanted if str(file) not in known]
    with options.kept.open("a") as kept:
        for number, outcome in run_all(look, missing, options.jobs):
            if isinstance(outcome, Exception):
                print(f"{missing[number]}: {outcome}", file=sys.stderr)
                continue
            print(written(outcome), file=kept, flush=True)
            known[outcome.file] = outcome
    found = [known[str(file)] for file in wanted if str(file) in known]
    for one in found:
        for place in one.places:
            print(f"{one.file}: {place.address:#x} {place.name}, {place.size}: CFI {place.claim}; code {place.proof}")
            print(*(f"    {line}" for line in place.instructions), sep="\n")
    measured.write(options.json, results(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
