"""Runs profilers over programs, with libsframe-backtrace and without, and compares stacks and CPU time: corpus/README.md.

The head of the report, docs/reports/backtraces.md, says what is run. Exit status 1: stacks differ.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from corpus.backtrace.prepared import Copies
from corpus.backtrace.profilers import PROFILERS, Profiler, Stacks
from corpus.report_pages import linux, write_or_print, write_page
from sframegen.backtrace.installed_libraries import STATISTICS, preload_object

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD = Path(__file__).with_name("head.md")
COUNTED = re.compile(r"sframegen preload: process \d+: (\d+) stack traces from sections, (\d+) by the program's own unwinder")
SHOWN = 5  # differences
ALONE, PROFILED, WITH_SECTIONS = "program", "profiled", "profiled, with sections"


class Measured(NamedTuple):
    profiler: Profiler
    stacks: int
    allocations: int
    different: int
    from_sections: int
    passed_on: int
    seconds: dict[str, float]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m corpus.backtrace", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("only", nargs="*", metavar="PROFILER", help=f"default: {', '.join(PROFILERS)}")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each kind (default %(default)s)")
    parser.add_argument("--report", type=Path, help="write the report to this file, not to standard output")
    options = parser.parse_args()
    if unknown := set(options.only) - PROFILERS.keys():
        parser.error(f"no such profiler: {', '.join(sorted(unknown))}")
    measured, missing = [], {}
    for name in options.only or PROFILERS:
        with tempfile.TemporaryDirectory(prefix="backtrace-") as scratch:
            folder = Path(scratch)
            copies = Copies(folder / "copies")
            try:
                profiler = PROFILERS[name](copies, folder)
            except (OSError, subprocess.CalledProcessError) as error:
                missing[name] = str(error)
                continue
            measured.append(measure(profiler, copies, folder, options.repeat))
    text = "\n".join([HEAD.read_text(), *_page(measured, missing)]) + "\n"
    if options.report:
        write_page(options.report, text)
    else:
        write_or_print(None, text)
    return int(any(one.different for one in measured))


def measure(profiler: Profiler, copies: Copies, folder: Path, repeat: int) -> Measured:
    """Compare the stacks of a short run, and the times of long ones, which alternate."""
    found: dict[str, Stacks] = {}
    from_sections = passed_on = 0
    for kind in (PROFILED, WITH_SECTIONS):
        output = folder / f"output-{kind == WITH_SECTIONS}"
        printed, said, _ = _run(profiler, kind, copies, output, profiler.fewer, statistics_wanted=True)
        found[kind] = profiler.read(output, printed)
        for counted in COUNTED.finditer(said):
            from_sections += int(counted[1])
            passed_on += int(counted[2])
    before, after = found[PROFILED], found[WITH_SECTIONS]
    differences = [*(before - after).items(), *(after - before).items()]
    different = sum(count for _, count in differences)
    for stack, count in differences[:SHOWN]:
        print(f"{profiler.name}: {count}: {'; '.join(stack)}", file=sys.stderr)
    times: dict[str, list[float]] = {kind: [] for kind in (ALONE, PROFILED, WITH_SECTIONS) if kind != ALONE or profiler.alone}
    for number in range(repeat):
        for kind, seconds in times.items():
            seconds.append(_run(profiler, kind, copies, folder / f"{kind}-{number}", profiler.rounds)[2])
    medians = {kind: statistics.median(seconds) for kind, seconds in times.items()}
    return Measured(profiler, len(before), before.total(), different, from_sections, passed_on, medians)


def _run(
    profiler: Profiler, kind: str, copies: Copies, output: Path, rounds: int, *, statistics_wanted: bool = False
) -> tuple[str, str, float]:
    """Return what a run prints to both outputs, and its CPU time in seconds."""
    words = profiler.alone if kind == ALONE else profiler.profiled
    command = [word.format(rounds=rounds, output=output) for word in words]
    preload = [preload_object()] * (kind == WITH_SECTIONS) + profiler.preload * (kind != ALONE)
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "LD_LIBRARY_PATH": str(copies.libraries)}
    environment |= {name: value.format(output=output) for name, value in profiler.environment.items()}
    if kind == ALONE:
        environment.pop("HEAPPROFILE", None)
    if statistics_wanted:
        environment[STATISTICS] = "1"
    # The programs have none of this process' environment, and `env` sets LD_PRELOAD for the command alone.
    started = ["env", f"LD_PRELOAD={':'.join(map(str, preload))}", *command]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(started, env=environment, stdout=subprocess.PIPE, stderr=said, text=True)
        assert process.stdout is not None
        printed = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close()
        said.seek(0)
        words_said = said.read()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, printed, words_said)
    return printed, words_said, usage.ru_utime + usage.ru_stime


def _page(measured: list[Measured], missing: dict[str, str]) -> Iterator[str]:
    load = os.getloadavg()[0]
    yield f"{linux()}, {platform.libc_ver()[1]} of glibc, {os.cpu_count()} CPUs; load at the end {load:.1f}.\n"
    yield "## Stacks\n"
    yield "| profiler | its traces come from | different stacks | their number | differences | from sections | passed on |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for one in measured:
        numbers = (one.stacks, one.allocations, one.different, one.from_sections, one.passed_on)
        yield f"| {one.profiler.name} | {one.profiler.asks} | {' | '.join(f'{number:,}' for number in numbers)} |"
    yield "\n## CPU time, seconds\n"
    yield "| profiler | without it | with it | with it and sections | what its traces cost | with sections |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for one in measured:
        alone = one.seconds.get(ALONE, 0.0)
        before, after = (one.seconds[kind] for kind in (PROFILED, WITH_SECTIONS))
        cells = (alone, before, after, before - alone, after - alone)
        yield f"| {one.profiler.name} | {' | '.join(f'{cell:.2f}' for cell in cells)} |"
    for name, why in missing.items():
        yield f"\nNot run: {name}: {why}"


if __name__ == "__main__":
    sys.exit(main())
