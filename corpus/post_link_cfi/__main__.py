"""Checks the CFI of programs that linkers and a post-link optimizer wrote: `python -m corpus.post_link_cfi [--docs FILE]`.

Each is made here. BOLT and lld come from Debian's newest suite, unpacked, not installed. Exit status 1: a wrong CFI is not found,
or a right one is reported.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from corpus.contradictions.found import look
from corpus.contradictions.report import replace_between
from corpus.merge.report import table
from corpus.post_link_cfi.builds import Built, builds
from corpus.report_pages import measured_with

if TYPE_CHECKING:
    from corpus.contradictions.found import Place

BEGIN, END = "<!-- post-link -->", "<!-- end of post-link -->"
COLUMNS = ("made with", "bytes right", "contradicted", "undecided", "the place", "its own backtrace()")
SECONDS = 60


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m corpus.post_link_cfi", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--docs", type=Path, help="the document whose table is replaced")
    options = parser.parse_args()
    rows = []
    status = 0
    with TemporaryDirectory() as scratch:
        for built in builds(Path(scratch)):
            found = look(built.file)
            if bool(found.places) != built.wrong:
                status = 1
                print(f"{built.how}: {len(found.places)} places, {found.refused}", file=sys.stderr)
            code = found.code
            figures = (f"{code[what]:,}" for what in ("right", "contradicted", "undecided"))
            rows.append((built.how, *figures, "; ".join(map(_place, found.places)), _own_stack(built)))
    text = "\n".join([f"{measured_with()}.", "", *table(COLUMNS, rows), ""])
    print(text)
    if options.docs:
        replace_between(options.docs, BEGIN, END, text)
    return status


def _place(place: Place) -> str:
    return f"`{place.name}`, {place.size}: `{_short(place.claim)}`, and the code `{_short(place.proof)}`"


def _short(equation: str) -> str:
    return equation.removeprefix("(cfa, ra, fp) = ")


def _own_stack(built: Built) -> str:
    """Return what the program prints of its own stack."""
    if not built.runs:
        return ""
    done = subprocess.run([built.file], capture_output=True, text=True, check=False, timeout=SECONDS)
    return f"killed by signal {-done.returncode}" if done.returncode < 0 else f"{done.stdout.split()[0]} frames"


if __name__ == "__main__":
    sys.exit(main())
