"""The results of a run, in Markdown: docs/reports/profiles.md."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from corpus.merge.report import table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .verdict import Row

HEAD = Path(__file__).with_name("head.md")
PROGRAMS = (
    "postgres",
    "node",
    "clang",
    "rg",
    "firefox-esr",
    "redis-server",
    "git",
    "perl",
    "bash",
)
VERSION = re.compile(r"\d+(\.\d+)+")
HEADS = (
    *("workload", "processes", "samples", "in system calls", "complete", "walked in the kernel", "mean depth", "deepest", "frames"),
    *("guessed", "equal to gdb's", "equal to sframegen stack's", "stacks equal to gdb's", "to sframegen stack's", "copies equal"),
    "differences",
)
WHY_ENDED = """
Why walks ended before the outermost frame. Functions of the C runtime's start files (`.fini`, `deregister_tm_clones`) and code that
an engine makes at run time have no rules, and need not keep a frame pointer. The dynamic loader's resolver keeps its CFA in a
register that is not known in a caller.
"""
WHY_COMPARED = """
The reasons why stacks were not compared to the end, as in [Comparison with gdb](stacks.md): one tracer ended before another one, or
guessed where nothing describes the code. In each case the file has no CFI there, or SFrame cannot say what the CFI says.
"""
WHY_LEFT_OUT = """
Samples that were not compared, because the thread did not stop in the state in which it was sampled.
"""


def markdown(rows: Sequence[Row], about: str, left_out: Iterable[str]) -> str:
    differences = [(row, difference) for row in rows for difference in row.differences]
    missing = "".join(f" Left out: {one}." for one in left_out)
    samples, frames, complete = (sum(getattr(row, name) for row in rows) for name in ("samples", "frames", "complete"))
    reasons = sum(row.ends.total() for row in rows)
    lines = [HEAD.read_text() + f"One run: {about}. {_programs()}.{missing}", "", "## Results", ""]
    same = [f"{sum(getattr(row, name) for row in rows):,}" for name in ("frames_gdb", "frames_stack", "guessed")]
    lines.append(
        f"{samples:,} samples, {frames:,} frames: **{len(differences)} differences**. {same[0]} frames are equal to gdb's,"
    )
    lines.append(f"{same[1]} to those of sframegen stack. A frame pointer led to {same[2]} of them, which are marked as guesses.")
    lines.append(f"{_share(complete, samples)} of the stacks reach the outermost frame; {reasons} end before it with a reason.")
    lines += ["", *(f"- {row.workload}: {difference}" for row, difference in differences), *[""] * bool(differences)]
    lines += [*table(HEADS, map(_cells, rows)), ""]
    parts = (
        ("Ends", WHY_ENDED, "stacks", "ends"),
        ("Incomplete comparisons", WHY_COMPARED, "comparisons", "reasons"),
        ("Samples left out", WHY_LEFT_OUT, "samples", "left_out"),
    )
    for title, why, counted, kind in parts:
        lines += [f"## {title}", why, *table((counted, "workloads", "reason"), _by_reason(rows, kind)), ""]
    return "\n".join(lines[:-1]) + "\n"


def _cells(row: Row) -> tuple[object, ...]:
    processes = ", ".join(f"{name} {count}" for name, count in row.processes.most_common())
    frames = (f"{count:,}" for count in (row.frames, row.guessed, row.frames_gdb, row.frames_stack))
    mean = f"{row.frames / max(1, row.samples):.1f}"
    return (
        row.workload, processes, row.samples, row.in_calls, _share(row.complete, row.samples), row.finished, mean, row.deepest,
        *frames, row.equal_gdb, row.equal_stack, row.equal_copies, len(row.differences),
    )  # fmt: skip


def _by_reason(rows: Iterable[Row], kind: str) -> Iterable[tuple[object, ...]]:
    found: Counter[str] = Counter()
    where: dict[str, list[str]] = {}
    for row in rows:
        for reason, count in getattr(row, kind).items():
            found[reason] += count
            where.setdefault(reason, []).append(row.workload)
    return ((count, ", ".join(where[reason]), reason) for reason, count in found.most_common())


def _share(part: int, whole: int) -> str:
    return f"{100 * part / max(1, whole):.1f} %"


def _programs() -> str:
    """Versions of those that are installed."""
    return ", ".join(f"{name} {version}" for name in PROGRAMS if (version := _version(name)))


def _version(name: str) -> str:
    try:
        said = subprocess.run([name, "--version"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout
    except OSError:
        return ""
    found = VERSION.search(said)
    return found[0] if found else ""
