from __future__ import annotations

import os
import shutil
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

import click

from cfi.errors import SframegenError
from sframegen.cli.shared.output import Run, note
from sframegen.elf.text import count_of
from sframegen.profile.events.names import event_named
from sframegen.profile.paused_command import PausedCommand
from sframegen.profile.report.formats import ENDINGS, check_ending, write
from sframegen.profile.report.grouping import GROUPS, group
from sframegen.profile.report.naming import name_stacks
from sframegen.profile.report.summary import as_json
from sframegen.profile.report.table import table
from sframegen.profile.session import KernelSession, Plan
from sframegen.stack.sampling import Interrupts

if TYPE_CHECKING:
    from sframegen.profile.collected import Collected

MEBIBYTE = 1 << 20
QUIET = 1.0  # seconds before the line of live figures appears
REFRESH = 0.5  # seconds


@click.command(name="profile")
@click.argument("arguments", metavar="PID... | -- COMMAND...", nargs=-1, type=click.UNPROCESSED)
@click.option("--system", is_flag=True, help="Sample all processes.")
@click.option("--perf-data", type=click.Path(), help="Read what `perf record --call-graph dwarf` wrote to this file.")
@click.option("--probe", is_flag=True, help="Print what this machine can do, and what would allow more.")
@click.option("-F", "--frequency", type=click.IntRange(1, 1_000_000), default=99, show_default=True, help="Samples per second and CPU.")
@click.option("-d", "--duration", type=click.FloatRange(0, min_open=True), help="Stop after this number of seconds.")
@click.option("-e", "--event", default="cpu-clock", show_default=True, help="What to sample: cpu-clock, cycles, page-faults, ...")
@click.option("-o", "--output", multiple=True, type=click.Path(), help=f"Write to this file; its ending decides the format: {ENDINGS}.")
@click.option("--tid", type=click.IntRange(1), multiple=True, help="Sample only this thread.")
@click.option("--kernel", is_flag=True, help="Include the frames of the kernel.")
@click.option("--by", type=click.Choice(list(GROUPS)), default="comm", show_default=True, help="What to group stacks by.")
@click.option("--idle", is_flag=True, help="With --system, count idle CPUs.")
@click.option("--collapse-runtime", is_flag=True, help="Show the C frames of an interpreter as one frame.")
@click.option("--max-memory", type=click.IntRange(1), default=1024, show_default=True, help="MiB of tables in the kernel.")
@click.option("--backend", type=click.Choice(["bpf", "copies"]), help="How to walk stacks.  [default: bpf where it is permitted]")
@click.option("--json", "as_summary", is_flag=True, help="Print the summary as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    arguments: tuple[str, ...],
    *,
    system: bool,
    perf_data: str | None,
    probe: bool,
    frequency: int,
    duration: float | None,
    event: str,
    output: tuple[str, ...],
    tid: tuple[int, ...],
    kernel: bool,
    by: str,
    idle: bool,
    collapse_runtime: bool,
    max_memory: int,
    backend: str | None,
    as_summary: bool,
) -> None:
    """Profile processes: sample their stacks, and show where the time goes.

    PIDs are live processes; COMMAND is started and sampled with its children. The kernel walks the stacks with the rules of SFrame
    sections; files without a section are converted in memory. Without --output, the hottest functions and stacks are printed.
    Ctrl-C and SIGTERM end the profile and print it. The exit status of COMMAND is passed on.
    """
    if bool(arguments) + system + (perf_data is not None) + probe != 1:
        raise click.UsageError("give one of these: process ids, a command to start, --system, --perf-data, or --probe")
    if idle and not system:
        raise click.UsageError("--idle is for --system")
    for path in output:
        check_ending(path)
    run = Run()
    show = Show(run, output, by, collapse_runtime, as_summary)
    if probe:
        ...
    if perf_data is not None:
        with run.file(perf_data):
            show(read_perf_data(perf_data))
        ctx.exit(run.status)
    pids = pids_of(arguments)
    ...


class Show(NamedTuple):
    """What becomes of a profile."""

    run: Run
    output: tuple[str, ...]
    by: str
    collapse_runtime: bool
    as_summary: bool

    def __call__(self, collected: Collected) -> None:
        named = group(name_stacks(collected, collapse_runtime=self.collapse_runtime), self.by)
        for path in self.output:
            with self.run.file(path):
                write(named, path)
        if self.as_summary:
            click.echo(as_json(named))
        elif not self.output:
            for line in table(named, shutil.get_terminal_size((100, 24)).columns):
                click.echo(line)
        else:
            for line in totals(named):
                note(line)
