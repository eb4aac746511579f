from __future__ import annotations

import gc
import json
import os
import re
import sys
from typing import TYPE_CHECKING

import click

from sframegen.cli.shared.output import PathName, Run, note

if TYPE_CHECKING:
    from collections.abc import Callable

EXTRA = ("altair", "debian", "distributed", "fsspec", "pyarrow", "vl_convert")
REMEDY = 'sframegen fleet needs more packages: pip install "sframegen[fleet]"'
SIZE = re.compile(r"(\d+)([KMGT]?)(?:i?B)?\Z", re.IGNORECASE)
MIN_MEMORY = 1 << 28
COLLECT = (10_000, 10, 10)  # unlike other commands, a run can take hours, and Dask leaves circles


def _size(_ctx: click.Context, _parameter: click.Parameter, text: str) -> int:
    match = SIZE.match(text)
    if match is None:
        raise click.BadParameter(f"{text!r} is not a size such as 512M or 4G")
    size = int(match[1]) << 10 * " KMGT".index(match[2].upper() or " ")
    if size < MIN_MEMORY:
        raise click.BadParameter(f"{text} is too little for any package: at least {MIN_MEMORY >> 20}M")
    return size


def _needs_extra() -> None:
    """Ends the command in one line where a package of the extra is not installed."""
    from importlib.util import find_spec  # noqa: PLC0415 - only for this command

    missing = [name for name in EXTRA if find_spec(name) is None]
    if missing:
        note(REMEDY)
        click.get_current_context().exit(1)


@click.group(name="fleet")
def command() -> None:
    """Add sections to many packages, a distribution for instance, or survey them: on this machine or a cluster, with Dask."""


@command.command(name="run")
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@click.option(
    "--output", required=True, metavar="DIR", type=PathName(), help="Write results to this directory; all workers need it."
)
@click.option(
    "--mode",
    type=click.Choice(["survey", "detached", "unloaded", "rewrite"]),
    default="survey",
    show_default=True,
    help="survey: only results. detached: sections in DIR/sections. unloaded, rewrite: new packages in DIR/packages, with sections"
    " that are not loaded, or loaded.",
)
@click.option("--scheduler", metavar="ADDRESS", help="Work on this cluster of Dask, tcp://HOST:PORT, instead of this machine.")
@click.option("--workers", metavar="N", type=click.IntRange(min=1), show_default="usable cores", help="Processes on this machine.")
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    default=900,
    show_default=True,
    help="Time for one package.",
)
@click.option(
    "--memory",
    metavar="SIZE",
    callback=_size,
    default="4G",
    show_default=True,
    help="Memory (address space) for one package: 512M, or 4G.",
)
@click.option("--force", is_flag=True, help="Also change signed packages and files.")
@click.option("--json", "as_json", is_flag=True, help="Print the sums as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing about packages that are refused or fail, and no sums.")
@click.pass_context
def run(
    ctx: click.Context,
    sources: tuple[str, ...],
    *,
    output: str,
    mode: str,
    scheduler: str | None,
    workers: int | None,
    timeout: float,
    memory: int,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Work on all packages of each SOURCE, and write a table of their ELF files to DIR/files.parquet.

    A SOURCE is a package, a directory, a glob, a file with a path or URL in each line (- is standard input), a URL that fsspec
    reads (https:, s3:, gs: and others; one that ends with / is a directory), a Packages index of APT, or a repomd.xml of RPM. The
    linked ELF files of a directory are one package, too.

    A run that is interrupted continues when the same command runs again: what is done is not done again, unless options or the
    version of sframegen change. Packages that failed are tried again.
    """
    if scheduler is not None and workers is not None:
        raise click.UsageError("--workers is for this machine: the cluster of --scheduler has its own")
    _needs_extra()
    from sframegen.cli.shared.early_end import EndedError  # noqa: PLC0415
    from sframegen.cli.shared.several import Bar  # noqa: PLC0415
    from sframegen.fleet.dask_engine import Cluster  # noqa: PLC0415
    from sframegen.fleet.fleet_run import FleetRun  # noqa: PLC0415
    from sframegen.fleet.run_options import Mode, RunOptions  # noqa: PLC0415

    findings = Run()
    options = RunOptions(Mode(mode), force=force, timeout=timeout, memory=memory)
    gc.set_threshold(*COLLECT)
    totals = None
    with Bar() as bar:
        fleet = FleetRun(sources, output, options, _Watcher(findings, bar if sys.stderr.isatty() else None, quiet=quiet))
        try:
            with findings.file(output):
                totals = fleet.run(Cluster(scheduler, workers or len(os.sched_getaffinity(0))))
        except EndedError:
            note(f"interrupted: {fleet.how_to_continue()}")
            raise
    if totals is not None and as_json:
        click.echo(json.dumps(totals.to_json(), indent=2))
    elif totals is not None and not quiet:
        click.echo(totals.one_line())
    ctx.exit(findings.status)


@command.command(name="report")
@click.argument("directory", metavar="DIR", type=PathName())
@click.option("-o", "--output", metavar="PAGE", type=PathName(), help="Write the page here.  [default: DIR/report.html]")
@click.pass_context
def report(ctx: click.Context, directory: str, *, output: str | None) -> None:
    """Make one HTML page of a run's tables, and the tables as CSV: DIR/files.csv, DIR/packages.csv.

    The page needs no network: plots, and tables of all packages and files that can be searched and sorted, are in it.
    """
    _needs_extra()
    from pathlib import Path  # noqa: PLC0415

    from cfi.errors import FormatError  # noqa: PLC0415
    from sframegen.fleet.report.make_report import make_report  # noqa: PLC0415

    findings = Run()
    with findings.file(directory):
        if not (Path(directory) / "packages.parquet").exists():
            raise FormatError("no tables of a run here: sframegen fleet run SOURCE --output DIR writes them")
        click.echo(make_report(Path(directory), None if output is None else Path(output)))
    ctx.exit(findings.status)


class _Watcher:
    """Prints findings of a run, and how far it is."""

    def __init__(self, findings: Run, bar: Callable[[int, int], object] | None, *, quiet: bool) -> None:
        self.findings = findings
        self.bar = bar
        self.quiet = quiet

    def finding(self, message: str) -> None:
        self.findings.status = 1
        if not self.quiet:
            note(message)

    def progress(self, done: int, total: int) -> None:
        if self.bar is not None:
            self.bar(done, total)
