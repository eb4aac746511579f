"""Stops programs at random moments, and compares the stacks that sframegen stack and gdb see there: corpus/README.md.

Needs gdb, gcc and g++, and for copies root or user namespaces: what is missing is left out and reported. Exit status 1: a stack
differs.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from corpus import measured
from corpus.stacks.copies import Copies
from corpus.stacks.debugger import Gdb
from corpus.stacks.report import results
from corpus.stacks.stops import Mode, Stopper
from corpus.stacks.workloads import WORKLOADS

if TYPE_CHECKING:
    from corpus.stacks.stops import Row

MODES = ("sections", "--convert", "no .eh_frame")


def main() -> int:
    parser = measured.argument_parser("corpus.stacks", __doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the stops of each workload (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="which moments (default %(default)s)")
    parser.add_argument("--mode", choices=MODES, action="append", help="only this one; may be given again")
    parser.add_argument("--only", choices=[one.name for one in WORKLOADS], action="append", help="may be given again")
    options = parser.parse_args()

    rows: list[Row] = []
    left_out: list[str] = []
    with tempfile.TemporaryDirectory(prefix="corpus-stacks-") as scratch:
        folder = Path(scratch)
        modes = {
            "sections": Mode("sections", convert=True, copies=Copies(folder / "sections", without_cfi=False)),
            "--convert": Mode("--convert", convert=True, copies=None),
            "no .eh_frame": Mode("no .eh_frame", convert=False, copies=Copies(folder / "without", without_cfi=True)),
        }
        for workload in WORKLOADS:
            if options.only and workload.name not in options.only:
                continue
            try:
                workload.prepare(folder)
            except (OSError, StopIteration) as error:
                left_out.append(f"{workload.name}: {error}")
                continue
            for name in options.mode or MODES:
                before = time.monotonic()
                with Gdb() as gdb:
                    row = Stopper(workload, modes[name], folder, options.seed).run(
                        gdb, max(1, round(workload.stops * options.share))
                    )
                rows.append(row)
                seen = f"{row.stops} stops, {row.frames} PCs, {row.cfas} CFAs, {row.equal} of {row.threads} threads equal"
                took = f"{time.monotonic() - before:.0f} s"
                print(
                    f"{row.workload}, {row.mode}: {seen}, {len(row.differences)} differ, {dict(row.reasons)}; {took}",
                    file=sys.stderr,
                )
                for difference in row.differences[:10]:
                    print(f"    {difference}", file=sys.stderr, flush=True)
    measured.write(options.json, results(rows, left_out))
    return int(any(row.differences for row in rows))


if __name__ == "__main__":
    sys.exit(main())
