from __future__ import annotations

import json
import os
import shutil
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from cfi.errors import SframegenError
from sframegen.cli.shared.command import Command, Example, Part, Value
from sframegen.cli.shared.common_options import JSON_OBJECT, duration, tid
from sframegen.cli.shared.number_values import COUNT, Numbers
from sframegen.cli.shared.output import SECTIONS, PathName, Run, note
from sframegen.detached.stores import Stores
from sframegen.elf.text import count_of, shortened
from sframegen.profile.backends import BACKENDS, open_session
from sframegen.profile.copies.counting import Wanted
from sframegen.profile.copies.perf_data import read_perf_data
from sframegen.profile.events.attributes import EventError
from sframegen.profile.events.names import BY_NAME, event_named
from sframegen.profile.paused_command import PausedCommand
from sframegen.profile.probe import probe
from sframegen.profile.report.formats.file_formats import FORMATS, check_target, format_of, write_profile
from sframegen.profile.report.formats.summary import summary
from sframegen.profile.report.grouping import GROUPS, group_stacks
from sframegen.profile.report.naming import name_stacks
from sframegen.profile.report.table import table, totals
from sframegen.profile.sampling_plan import ProfilePlan, is_process
from sframegen.profile.tables.table_cache import TableCache
from sframegen.program.missing_pages import zeros_for_missing_pages
from sframegen.stack.sampling import Interrupts

if TYPE_CHECKING:
    from sframegen.cli.shared.common_options import How
    from sframegen.profile.backends import Session
    from sframegen.profile.collected import Collected
    from sframegen.profile.report.formats.file_formats import Format

MIB = 1 << 20
LIVE_AFTER = 1.0  # seconds before the line of live figures appears
REFRESH = 0.5  # seconds
WIDTH = 100  # columns, where there is no terminal
DEFAULT_EVENT = "cpu-clock"
PID_DIGITS = 9  # more than the kernel gives


def _event(ctx: click.Context, _parameter: click.Parameter, name: str | None) -> str | None:
    """Refuse names of no event; whether this machine has one is seen later. A recording has its own names."""
    if name == "":
        raise click.BadParameter("the name is empty")
    if name is not None and name not in BY_NAME and ctx.params.get("perf_data") is None:
        try:
            event_named(name)
        except EventError as error:
            raise click.BadParameter(str(error)) from None
    return name


class Sampling(NamedTuple):
    """What is sampled, and how."""

    system: bool
    perf_data: str | None
    frequency: int
    event: str | None
    kernel: bool
    idle: bool
    max_memory: int  # MiB
    backend: str | None


part_of_sampling = partial(click.option, cls=Part, value=Value("sampling", Sampling))


@click.command(
    name="profile",
    cls=Command,
    exclusive=[
        *(("--perf-data", other) for other in ("--frequency", "--duration", "--max-memory", "--backend")),
        *(("--probe", other) for other in ("--output", "--duration", "--system", "--perf-data")),
        ("--system", "--perf-data"),
    ],
    examples=[
        Example("Profile a command, as a flame graph", "sframegen profile -o work.html -- ./prog"),
        Example("Profile two processes for ten seconds", "sframegen profile --duration 10 1234 1235"),
        Example("Print what this machine allows", "sframegen profile --probe"),
    ],
)
@click.argument("arguments", metavar="PID... | -- COMMAND...", nargs=-1, type=click.UNPROCESSED)
@part_of_sampling("--system", is_flag=True, help="Sample all processes.")
@part_of_sampling(
    "--perf-data", metavar="FILE", type=PathName(), is_eager=True, help="Read a file that `perf record --call-graph dwarf` wrote."
)
@click.option("--probe", "as_probe", is_flag=True, help="Print what this machine allows, and what would allow more.")
@part_of_sampling(
    "-F",
    "--frequency",
    metavar="N",
    type=Numbers(int, 1, 1_000_000),
    default=99,
    show_default=True,
    help="Samples per second on each CPU. Of events without a clock, such as page-faults, every Nth is a sample.",
)
@duration("Stop after this number of seconds.")
@part_of_sampling(
    "-e",
    "--event",
    metavar="EVENT",
    callback=_event,
    help="What to sample: cpu-clock, page-faults, cycles, ...; with --perf-data, which event of the recording."
    "  [default: cpu-clock; of a recording the first]",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    multiple=True,
    type=PathName(),
    help=f"Write to this file, in the format of its ending: {', '.join(FORMATS)}. May be given again.",
)
@tid("Show only this thread. May be given again.", several=True)
@part_of_sampling("--kernel", is_flag=True, help="Include kernel frames.")
@click.option("--by", type=click.Choice(list(GROUPS)), default="comm", show_default=True, help="What to group stacks by.")
@part_of_sampling("--idle", is_flag=True, help="With --system, count samples of idle CPUs, too.")
@click.option("--collapse-runtime", is_flag=True, help="Show the C frames of an interpreter as one frame.")
@part_of_sampling("--max-memory", metavar="MIB", type=COUNT, default=1024, show_default=True, help="MiB of tables in the kernel.")
@part_of_sampling(
    "--backend",
    type=click.Choice(BACKENDS),
    help="Where stacks are walked: in the kernel (BPF), or here, from copies.  [default: in the kernel where that is allowed]",
)
@SECTIONS
@JSON_OBJECT
@click.pass_context
def command(
    ctx: click.Context,
    arguments: tuple[str, ...],
    *,
    sampling: Sampling,
    as_probe: bool,
    duration: float | None,
    output: tuple[str, ...],
    tid: tuple[int, ...],
    by: str,
    collapse_runtime: bool,
    sections: list[str],
    how: How,
) -> None:
    """Profile processes: sample their stacks, and show where the time goes.

    PIDs are live processes; COMMAND is started and sampled. Their descendants are sampled, too. The kernel walks
    the stacks with the rules of SFrame sections; files without a section are converted in memory. Where the kernel does not allow
    that, processes of your own are sampled with copies of their stacks. Without --output, the hottest functions and stacks are
    printed. Ctrl-C and SIGTERM end the profile and print it. The exit status of COMMAND is passed on.
    """
    perf_data = sampling.perf_data
    if bool(arguments) + sampling.system + (perf_data is not None) + as_probe != 1:
        raise click.UsageError("give one of these: process ids, a command to start, --system, --perf-data, --probe")
    if sampling.idle and not sampling.system:
        raise click.UsageError("--idle is for --system")
    moments = any(_format(path).needs_moments for path in output)
    run = Run()
    shown = Shown(run, output, by, collapse_runtime=collapse_runtime, as_json=how.as_json)
    if as_probe:
        found = probe()
        click.echo(json.dumps(found.fields()) if how.as_json else "\n".join(found.lines()))
        ctx.exit(0)
    for path in output:
        with run.file(path):
            check_target(path)
    if run.status:
        ctx.exit(run.status)
    wanted = Wanted(threads=by == "tid" or moments or bool(tid), kernel=sampling.kernel, moments=moments)
    stores = Stores(sections)
    status = 0
    with zeros_for_missing_pages(), run.file(perf_data or ""), Interrupts(at_once=perf_data is not None) as interrupts:
        if perf_data is not None:
            workers, cache = os.cpu_count() or 1, TableCache()
            recorded = read_perf_data(Path(perf_data), wanted, event=sampling.event, workers=workers, cache=cache, stores=stores)
            recorded.keep_threads(frozenset(tid))
            shown(recorded)
        else:
            plan = ProfilePlan(
                None, event_named(sampling.event or DEFAULT_EVENT), sampling.frequency, frozenset(tid), **wanted._asdict(),
                idle=sampling.idle, max_memory=sampling.max_memory * MIB, stores=stores,
            )  # fmt: skip
            status = _sampled(arguments, plan, sampling.backend, duration, shown, interrupts)
    ctx.exit(status or run.status)


def _sampled(
    arguments: tuple[str, ...], plan: ProfilePlan, backend: str | None, duration: float | None, shown: Shown, interrupts: Interrupts
) -> int:
    """Profile these processes, the command, or all. The exit status: of the command, or of the signal that ended it."""
    with ExitStack() as opened:
        command = None
        if arguments:
            pids = _pids(arguments)
            if pids is not None:
                _check_threads(plan.tids)
            else:
                command = PausedCommand(arguments)
                opened.callback(command.kill)
                pids = frozenset([command.pid])
            plan = plan._replace(targets=pids, after_exec=command is not None)
        session, why_copies = open_session(plan, backend)
        opened.enter_context(session)
        if why_copies:
            note(why_copies)
        session.begin()
        if command:
            _resume(command, arguments[0])
        sample(session, interrupts, command, duration)
        shown(session.finish())
        if command:
            return command.finish(interrupts)
        return 128 + interrupts.number if interrupts.number else 0


class Shown(NamedTuple):
    """The outputs of a profile."""

    run: Run
    output: tuple[str, ...]
    by: str
    collapse_runtime: bool
    as_json: bool

    def __call__(self, collected: Collected) -> None:
        named = group_stacks(name_stacks(collected, collapse_runtime=self.collapse_runtime), self.by)
        for path in self.output:
            with self.run.file(path):
                write_profile(named, path)
        if self.as_json:
            for part in summary(named):
                click.echo(part, nl=False)
        elif self.output:
            for line in totals(named):
                note(line)
        else:
            for line in table(named, shutil.get_terminal_size((WIDTH, 24)).columns):
                click.echo(line)


class Live:
    """One line of figures on a terminal, while it samples."""

    def __init__(self) -> None:
        self._due = time.monotonic() + LIVE_AFTER
        self._shown = False

    def show(self, session: Session, seconds: float) -> None:
        if not sys.stderr.isatty() or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + REFRESH
        self._shown = True
        line = f"{count_of(session.samples, 'sample')}, {seconds:.0f} s; Ctrl-C ends"
        click.echo(f"\r\033[K{line}", err=True, nl=False)

    def clear(self) -> None:
        if self._shown:
            click.echo("\r\033[K", err=True, nl=False)


def sample(session: Session, interrupts: Interrupts, command: PausedCommand | None, duration: float | None) -> None:
    """Sample until the time is over, a signal comes, or there is nothing left to sample."""
    begin = time.monotonic()
    live = Live()
    while not interrupts.number and (command.runs() if command else session.plan.has_targets()):
        seconds = time.monotonic() - begin
        if duration and seconds >= duration:
            break
        session.turn()  # is not interrupted: it may have taken records, which are nowhere else
        live.show(session, seconds)
    live.clear()


def _resume(command: PausedCommand, name: str) -> None:
    try:
        command.resume()
    except OSError as error:
        raise click.UsageError(f"{name}: neither a process id nor a program: {error.strerror}") from None


def _check_threads(tids: frozenset[int]) -> None:
    """Say which threads do not exist, before anybody waits for their samples: they may still begin."""
    for number in sorted(tids):
        if not is_process(number):  # /proc has threads, too
            note(f"--tid {number}: there is no such thread")


def _format(path: str) -> Format:
    try:
        return format_of(path)
    except SframegenError as error:
        raise click.UsageError(str(error)) from None


def _pids(arguments: tuple[str, ...]) -> frozenset[int] | None:
    """Return the process ids; None for a command."""
    others = [argument for argument in arguments if not (argument.isdecimal() and argument.isascii())]
    if not others:
        if long := [argument for argument in arguments if len(argument) > PID_DIGITS]:
            raise click.UsageError(f"{shortened(long[0])}: not a process id")
        return frozenset(map(int, arguments))
    if others[0] != arguments[0]:
        raise click.UsageError(f"{others[0]}: not a process id, as {arguments[0]} is")
    if not arguments[0]:
        raise click.UsageError("the name of the command is empty")
    return None
