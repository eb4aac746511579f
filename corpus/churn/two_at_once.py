"""Two profilers of the same machine at the same time, and one beside perf record."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from corpus.churn.profiled import Profiled, only_of, profile
from corpus.churn.truth import OURS, Verdict, judge

KINDS = ("busy", "fork", "plugins")
NO_SAMPLES = "no samples"
LONGEST = 100.0  # seconds
PERF = ("perf", "record", "-a", "-F", "999", "--call-graph", "dwarf,8192", "-o")


class TwoRow(NamedTuple):
    name: str
    verdicts: list[Verdict]
    faults: list[str]


def two_at_once(folder: Path, seconds: float) -> list[TwoRow]:
    restless = [folder / "restless", seconds, folder, *KINDS]
    both = _both(restless, seconds)
    if {*both.faults} == {NO_SAMPLES} and 4 * seconds < LONGEST:  # on a busy machine one may begin when the processes have ended
        return two_at_once(folder, 4 * seconds)
    rows = [both]
    if shutil.which("perf"):
        with tempfile.TemporaryDirectory(prefix="corpus-churn-") as scratch:
            perf = subprocess.Popen(
                [*PERF, str(Path(scratch, "perf.data")), "--", "sleep", str(seconds)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            run = profile("--", *restless)
            faults = [] if perf.wait() == 0 else [f"perf record: status {perf.returncode}"]
            rows.append(_row("beside perf record", [run], faults))
    return rows


def _both(restless: list[object], seconds: float) -> TwoRow:
    """One starts the restless processes; the other samples them, too: a third as long, for it may take longer to start."""
    with ThreadPoolExecutor(2) as pool:
        started = [pool.submit(profile, *arguments) for arguments in (("--", *restless), ("--system", "-d", seconds / 3))]
        return _row("two profilers", [one.result() for one in started], [])


def _row(name: str, runs: list[Profiled], faults: list[str]) -> TwoRow:
    faults += [run.fault for run in runs if run.fault]
    verdicts = [judge(only_of(run.profile, OURS)) for run in runs if run.profile]
    faults += [fault for verdict in verdicts for fault in verdict.faults]
    faults += [NO_SAMPLES for verdict in verdicts if not verdict.samples]
    return TwoRow(name, verdicts, faults)
