"""Runs sframegen profile against restless and hostile processes, and compares with what those know: corpus/README.md.

The head of the report, docs/reports/churn.md, says what is run. Needs root, a kernel that allows BPF, gcc and bpftool.
Exit status 1: a stack is wrong, or something else is not as it should be.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from corpus.churn.churn_report import Results, faults_of, markdown
from corpus.churn.corrupt import corrupt
from corpus.churn.hostile_user import hostile
from corpus.churn.killing import interrupt, interrupt_twice, kill
from corpus.churn.long_run import long_run
from corpus.churn.restless import FEW, compile_all, restless, short_lived
from corpus.churn.two_at_once import two_at_once
from corpus.report_pages import write_or_print

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 10.0
SECONDS_OF_LONG_RUN = 3600.0
TIMES = 100


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m corpus.churn", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each profile (default %(default)s)")
    parser.add_argument("--long", type=float, default=SECONDS_OF_LONG_RUN, help="seconds of the long run (default %(default)s)")
    parser.add_argument("--times", type=int, default=TIMES, help="how often a profiler is killed (default %(default)s)")
    parser.add_argument("--processes", type=int, default=FEW, help="number of short-lived processes (default %(default)s)")
    parser.add_argument("--only", choices=Results._fields, action="append", help="only this part; may be given again")
    parser.add_argument("--report", type=Path, help="write the report to this file, not to standard output")
    options = parser.parse_args()

    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="corpus-churn-") as scratch:
        folder = Path(scratch)
        folder.chmod(0o755)
        compile_all(folder)
        seconds = options.seconds
        parts: dict[str, Callable[[], object]] = {
            "restless": lambda: restless(folder, seconds),
            "short": lambda: short_lived(folder, options.processes),
            "corrupting": lambda: corrupt(folder, seconds),
            "killed": lambda: kill(options.times),
            "interrupted": lambda: interrupt(options.times),
            "twice": lambda: interrupt_twice(max(1, options.times // 5)),
            "two": lambda: two_at_once(folder, seconds),
            "hostile": lambda: hostile(folder, seconds),
            "long": lambda: long_run(options.long),
        }
        found: dict[str, object] = {}
        for name, run in parts.items():
            if not options.only or name in options.only:
                found[name] = run()
                print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        results = Results(**found)  # type: ignore[arg-type] # each part returns what its field has
    text = markdown(results, " ".join(["python -m corpus.churn", *sys.argv[1:]]), time.monotonic() - began)
    write_or_print(options.report, text)
    faults = faults_of(results)
    for fault in faults:
        print(fault, file=sys.stderr)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
