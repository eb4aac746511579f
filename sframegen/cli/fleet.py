from __future__ import annotations

import gc
import json
import re
import sys
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from sframegen.cli.shared.adding_options import FLEET, add_section_options, select_keywords
from sframegen.cli.shared.command import Command, Example, Group
from sframegen.cli.shared.common_options import SECONDS, CommonOptions, common_option, jobs_option, min_coverage_option
from sframegen.cli.shared.output import PathName, Run, note
from sframegen.program.libraries import FLEET as FLEET_LIBRARIES
from sframegen.program.libraries import ON_A_CLUSTER, import_library

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from sframegen.api.options import SectionOptions, WriteOptions
    from sframegen.fleet.run_options import Engine, Job

MEMORY_SIZE = re.compile(r"(\d+)([KMGT]?)(?:i?B)?\Z", re.IGNORECASE)
# The scheme, the host as a name or as an IPv6 address in brackets, and the port.
SCHEDULER_ADDRESS = re.compile(r"(?:tcp|tls|wss?)://(?:[\w.-]+|\[[\da-fA-F:.%\w]+\]):(\d{1,5})", re.ASCII)
MAX_PORT = 0xFFFF
MIN_MEMORY = 1 << 28
NOT_ENCRYPTED = (
    "is on another machine and not encrypted: anyone on the network path could run code on the workers; give a tls:// address, or"
    " 127.0.0.1 with a port that SSH forwards"
)
GC_THRESHOLDS = (10_000, 10, 10)  # collect more often than other commands: a run can take hours, and Dask makes reference cycles


def _parse_memory_size(_ctx: click.Context, _parameter: click.Parameter, text: str) -> int:
    match = MEMORY_SIZE.match(text)
    if match is None:
        raise click.BadParameter(f"{text!r} is not a size such as 512M or 4G")
    size = int(match[1]) << 10 * " KMGT".index(match[2].upper() or " ")  # each unit is 2**10 of the one before
    if size < MIN_MEMORY:
        raise click.BadParameter(f"{text} is out of range for a package (minimum {MIN_MEMORY >> 20}M)")
    return size


def _check_address(_ctx: click.Context, _parameter: click.Parameter, address: str | None) -> str | None:
    """Return the address. Raises BadParameter for a malformed one, for which Dask would wait a minute."""
    match = SCHEDULER_ADDRESS.fullmatch(address or "")
    if address is not None and (match is None or not 0 < int(match[1]) <= MAX_PORT):
        raise click.BadParameter(f"{address!r} is not an address such as tcp://HOST:PORT or tls://HOST:PORT")
    return address


def _refuse_options_of_adding(names: Iterable[str]) -> None:
    """Raise UsageError if one of these options, which have no effect with --mode check, is on the command line."""
    ctx = click.get_current_context()
    for option in ctx.command.params:
        if option.name in names and ctx.get_parameter_source(option.name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option.opts[0]} has no effect with --mode check")


def _choose_engine(scheduler: str | None, processes: int) -> Callable[[Job], AbstractContextManager[Engine]]:
    """Return the factory of the engine that runs the jobs. Raises UsageError for a scheduler that others could connect to."""
    if scheduler is None:
        from sframegen.fleet.one_machine import OneMachine  # noqa: PLC0415 - only for this command

        return partial(OneMachine, processes=processes)
    from sframegen.fleet.dask_cluster import DaskCluster, is_encrypted, is_this_machine  # noqa: PLC0415

    if not (is_encrypted(scheduler) or is_this_machine(scheduler)):
        raise click.UsageError(f"{scheduler} {NOT_ENCRYPTED}")
    return partial(DaskCluster, address=scheduler)


def _require_extra(scheduler: str | None) -> None:
    """End the command with one line if a package of the extra `fleet` is missing or damaged."""
    libraries = [library for library in FLEET_LIBRARIES if scheduler is not None or library.use != ON_A_CLUSTER]
    if absent := [library for library in libraries if find_spec(library.module) is None]:
        from sframegen.cli.shared.install_commands import install_command  # noqa: PLC0415 - not for each run

        projects = ", ".join(library.project for library in absent)
        note(f"sframegen fleet run needs {projects}; to install {'it' if len(absent) == 1 else 'them'}: {install_command(absent)}")
        click.get_current_context().exit(1)
    for library in libraries:
        import_library(library.module)


@click.group(
    name="fleet",
    cls=Group,
    examples=[
        Example("Survey packages", "sframegen fleet run pool -o survey"),
        Example("Write new packages, with sections", "sframegen fleet run pool -o new --mode rewrite"),
    ],
)
def command() -> None:
    """Add sections to many packages, a distribution for instance, or survey them: on this machine or a cluster, with Dask."""


@command.command(
    name="run",
    cls=Command,
    exclusive=[("--scheduler", "--jobs")],
    examples=[
        Example("Survey the packages of a directory", "sframegen fleet run pool --output survey"),
        Example("Write new packages, with four processes", "sframegen fleet run pool -o new --mode rewrite -j 4"),
        Example("Check the sections of a repository", "sframegen fleet run pool -o checked --mode check"),
    ],
)
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@click.option(
    "-o", "--output", required=True, metavar="DIR", type=PathName(), help="Write results to this directory; all workers need it."
)
@click.option(
    "--mode",
    type=click.Choice(["survey", "rewrite", "check"]),
    default="survey",
    show_default=True,
    help="survey: results only. rewrite: packages with sections, in DIR/packages. check: check existing sections.",
)
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    callback=_check_address,
    help="Work on a Dask cluster: give its scheduler as tls://HOST:PORT. Anyone who can reach it can run code as its user and"
    " as that of the workers. tcp://HOST:PORT, which is not encrypted, only for a scheduler on this machine.",
)
@jobs_option("Number of packages to process in parallel, on this machine.")
@click.option("--timeout", metavar="SECONDS", type=SECONDS, default=900, show_default=True, help="Time for one package.")
@click.option(
    "--memory",
    metavar="SIZE",
    callback=_parse_memory_size,
    default="4G",
    show_default=True,
    help="Memory (address space) for one package: 512M, or 4G.",
)
@add_section_options(FLEET)
@click.option("--exclude", metavar="GLOB", multiple=True, help="Leave out packages with these names. May be repeated.")
@min_coverage_option("Exit 1 if a file is refused, or its section covers less of its code.")
@click.option("--strict", is_flag=True, help="Exit 1 if a file is refused, or a check warns.")
@common_option("--json", "as_json", is_flag=True, help="Print the sums as a JSON object.")
@common_option("-q", "--quiet", is_flag=True, help="Do not print refused and failed packages, nor the sums.")
@click.pass_context
def run(
    ctx: click.Context,
    sources: tuple[str, ...],
    *,
    output: str,
    mode: str,
    scheduler: str | None,
    timeout: float,
    memory: int,
    exclude: tuple[str, ...],
    min_coverage: float | None,
    strict: bool,
    section_options: SectionOptions,
    write_options: WriteOptions,
    common: CommonOptions,
) -> None:
    """Work on all packages of each SOURCE, and write a table of their ELF files to DIR/files.parquet.

    A SOURCE is a package, a directory, a file with a path or URL in each line (- is standard input), a URL that fsspec
    reads (https:, s3:, gs: and others), or a Packages index of APT.

    A run that is interrupted continues when the same command runs again: what is done is not done again, unless options or the
    version of sframegen change. Packages that failed are tried again.
    """
    engine = _choose_engine(scheduler, common.jobs)
    keywords = select_keywords(FLEET, section_options, write_options)
    if mode == "check":
        _refuse_options_of_adding(keywords)
        keywords = {}
    _require_extra(scheduler)
    from sframegen.cli.shared.early_end import EndedError  # noqa: PLC0415
    from sframegen.cli.shared.many_files import DelayedProgressBar  # noqa: PLC0415
    from sframegen.fleet.fleet_run import CoverageDemand, FleetRun  # noqa: PLC0415
    from sframegen.fleet.run_options import Mode, RunOptions  # noqa: PLC0415

    command_run = Run()

    def report_finding(message: str) -> None:
        command_run.status = 1
        if not common.quiet:
            note(message)

    options = RunOptions(Mode(mode), keywords, timeout=timeout, memory=memory)
    gc.set_threshold(*GC_THRESHOLDS)
    totals = None
    with DelayedProgressBar() as bar:
        fleet = FleetRun(sources, output, options, report_finding, bar if sys.stderr.isatty() else None)
        fleet.exclude = exclude
        if not common.quiet:
            fleet.note = note
        fleet.demand = CoverageDemand(minimum=min_coverage, strict=strict, is_check=options.mode is Mode.CHECK)
        try:
            with command_run.working_on(output):
                totals = fleet.run(engine)
        except EndedError:
            note(f"interrupted: {fleet.how_to_continue()}")
            raise
    if totals is not None and common.as_json:
        click.echo(json.dumps(totals.to_json(), indent=2))
    elif totals is not None and not common.quiet:
        click.echo(totals.one_line())
    ctx.exit(command_run.status)
