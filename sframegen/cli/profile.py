from __future__ import annotations

import json
import os
import pwd
import shutil
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import click
from click.core import ParameterSource

from cfi.errors import SframegenError
from sframegen.cli.shared.command import Command, Example, Part, Value
from sframegen.cli.shared.common_options import JSON_OBJECT, duration, tid
from sframegen.cli.shared.live_table import LiveTable
from sframegen.cli.shared.number_values import COUNT, Numbers
from sframegen.cli.shared.output import SECTIONS, PathName, Run, note
from sframegen.detached.stores import Stores
from sframegen.elf.text import shortened
from sframegen.profile.backends import BACKENDS, open_session
from sframegen.profile.bpf.kernel_walker import Only
from sframegen.profile.copies.counting import Wanted
from sframegen.profile.copies.perf_data import read_perf_data
from sframegen.profile.events.attributes import EventError
from sframegen.profile.events.listing import list_events as all_events
from sframegen.profile.events.names import BY_NAME, event_named
from sframegen.profile.events.probes import find_event, is_point
from sframegen.profile.following.cgroups import folder_of
from sframegen.profile.paused_command import PausedCommand
from sframegen.profile.probe import probe
from sframegen.profile.report.formats.file_formats import FORMATS, check_target, format_of, write_profile
from sframegen.profile.report.formats.summary import summary
from sframegen.profile.report.grouping import CGROUP, GROUPS, group_stacks
from sframegen.profile.report.naming import name_stacks
from sframegen.profile.report.table import table, totals
from sframegen.profile.sampling_plan import ProfilePlan
from sframegen.profile.tables.table_cache import TableCache
from sframegen.program.missing_pages import zeros_for_missing_pages
from sframegen.stack.sampling import Interrupts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from sframegen.cli.shared.common_options import How
    from sframegen.profile.backends import Session
    from sframegen.profile.collected import Collected
    from sframegen.profile.events.names import Event
    from sframegen.profile.report.formats.file_formats import Format
    from sframegen.profile.report.named import Named

MIB = 1 << 20
LIVE_AFTER = 1.0  # seconds before the line of live figures appears
REFRESH = 0.5  # seconds
WIDTH = 100  # columns, where there is no terminal
DEFAULT_EVENT = "cpu-clock"
FILTERS = ("--user", "--comm", "--cgroup")
CLOCKS = ("cpu-clock", "task-clock")
NO_TIMES = ".firefox.json"
NANOSECONDS = 1_000_000  # in a millisecond
PID_DIGITS = 9  # more than the kernel gives


def _event(ctx: click.Context, _parameter: click.Parameter, name: str | None) -> str | None:
    """Refuse names of no event; whether this machine has one is seen later. A recording has its own names."""
    if name == "":
        raise click.BadParameter("the name is empty")
    if name is not None and name not in BY_NAME and not is_point(name) and ctx.params.get("perf_data") is None:
        try:
            event_named(name)
        except EventError as error:
            raise click.BadParameter(str(error)) from None
    return name


class Sampling(NamedTuple):
    """What is sampled, and how."""

    system: bool
    off_cpu: bool
    wall: bool
    min_block: float
    filter: str | None
    user: str | None
    comm: str | None
    cgroup: tuple[str, ...]
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
        *(("--perf-data", other) for other in ("--system", "--off-cpu", "--wall", "--filter", "--top", *FILTERS)),
        ("--off-cpu", "--wall"),
        *(("--off-cpu", other) for other in ("--event", "--frequency")),
        *(("--list-events", other) for other in ("--output", "--duration", "--system", "--perf-data", "--probe")),
    ],
    examples=[
        Example("Profile a command, as a flame graph", "sframegen profile -o work.html -- ./prog"),
        Example("Profile two processes for ten seconds", "sframegen profile --duration 10 1234 1235"),
        Example("Show where threads wait, and for what", "sframegen profile --off-cpu -d 10 1234"),
        Example("The stacks of large allocations", "sframegen profile -e uprobe:libc.so.6:malloc --filter 'arg1 > 1048576' 1234"),
        Example("Print what this machine allows", "sframegen profile --probe"),
    ],
)
@click.argument("arguments", metavar="PID... | -- COMMAND...", nargs=-1, type=click.UNPROCESSED)
@part_of_sampling("--system", is_flag=True, help="Sample all processes.")
@part_of_sampling("--off-cpu", is_flag=True, help="Count the time that threads do not run, by stack and reason.")
@part_of_sampling("--wall", is_flag=True, help="Count that and samples, as time, in one picture.")
@part_of_sampling(
    "--min-block",
    metavar="MS",
    type=Numbers(float, 0, 1e9),
    default=0.0,
    show_default=True,
    help="With --off-cpu and --wall: leave out times off the CPU below this number of milliseconds.",
)
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
    help="What to sample: cpu-clock, page-faults, cycles, ..., CATEGORY:NAME (a tracepoint), uprobe:FILE:FUNCTION, "
    "usdt:FILE:PROVIDER:NAME, kprobe:FUNCTION; with --perf-data, which event of the recording."
    "  [default: cpu-clock; of a recording the first]",
)
@part_of_sampling(
    "--filter",
    metavar="CONDITION",
    help="Only events of a tracepoint or probe whose fields or arguments are such: 'arg1 > 1048576 && (int)arg2 == -1'.",
)
@click.option("--list-events", is_flag=True, help="Print the events that this machine has.")
@part_of_sampling("--user", metavar="USER", help="Sample only threads of this user, by name or number.")
@part_of_sampling("--comm", metavar="NAME", help="Sample only threads with this name.")
@part_of_sampling(
    "--cgroup",
    metavar="PATH",
    multiple=True,
    help="Sample only processes in this control group (version 2), or below it: of a container. May be given again.",
)
@click.option("--top", is_flag=True, help="Show the table while sampling; q ends.")
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
    list_events: bool,
    top: bool,
    duration: float | None,
    output: tuple[str, ...],
    tid: tuple[int, ...],
    by: str,
    collapse_runtime: bool,
    sections: list[str],
    how: How,
) -> None:
    """Profile processes: sample their stacks, and show where the time goes.

    PIDs are live processes; COMMAND is started and sampled. Children that they start meanwhile are sampled, too. The kernel walks
    the stacks with the rules of SFrame sections; files without a section are converted in memory. Where the kernel does not allow
    that, processes of your own are sampled with copies of their stacks. Without --output, the hottest functions and stacks are
    printed. Ctrl-C and SIGTERM end the profile and print it. The exit status of COMMAND is passed on.
    """
    perf_data = sampling.perf_data
    only = _only(sampling)
    everything = sampling.system or (only is not None and not arguments)
    if bool(arguments) + everything + (perf_data is not None) + as_probe + list_events != 1:
        others = ", ".join(("--system", *FILTERS, "--perf-data", "--probe", "--list-events"))
        raise click.UsageError(f"give one of these: process ids, a command to start, {others}")
    if sampling.idle and not sampling.system:
        raise click.UsageError("--idle is for --system")
    timed = sampling.off_cpu or sampling.wall
    _check_timed(sampling, output)
    moments = any(_format(path).needs_moments for path in output) and not timed
    run = Run()
    shown = Shown(run, output, by, collapse_runtime=collapse_runtime, as_json=how.as_json)
    if list_events:
        listing = all_events()
        click.echo(json.dumps(listing.fields()) if how.as_json else "\n".join(listing.lines()))
        ctx.exit(0)
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
            recorded.stacks.keep_threads(frozenset(tid))
            shown(recorded)
        else:
            event = _found_event(sampling, arguments)
            every = event.points and ctx.get_parameter_source("frequency") is ParameterSource.DEFAULT
            plan = ProfilePlan(
                None, event, 1 if every else sampling.frequency, frozenset(tid), **wanted._asdict(),
                idle=sampling.idle, max_memory=sampling.max_memory * MIB, stores=stores, on_cpu=not sampling.off_cpu,
                off_cpu=timed, min_block=round(sampling.min_block * NANOSECONDS), cgroups=by == CGROUP, only=only,
            )  # fmt: skip
            status = _sampled(arguments, plan, sampling.backend, duration, shown, interrupts, top=top)
    ctx.exit(status or run.status)


def _found_event(sampling: Sampling, arguments: tuple[str, ...]) -> Event:
    pids = _pids(arguments) if arguments else None
    try:
        return find_event(sampling.event or DEFAULT_EVENT, sampling.filter, sorted(pids or ()))
    except EventError as error:
        raise click.UsageError(str(error)) from None


def _only(sampling: Sampling) -> Only | None:
    """Return what chooses among the tasks; None if all are sampled."""
    if sampling.user is None and sampling.comm is None and not sampling.cgroup:
        return None
    user = None
    if sampling.user is not None:
        try:
            user = int(sampling.user) if sampling.user.isdecimal() else pwd.getpwnam(sampling.user).pw_uid
        except KeyError:
            raise click.BadParameter(f"{shortened(sampling.user)}: no user of this machine", param_hint="--user") from None
    try:
        cgroups = tuple(map(folder_of, sampling.cgroup))
    except SframegenError as error:
        raise click.BadParameter(str(error), param_hint="--cgroup") from None
    return Only(user, sampling.comm, cgroups)


def _check_timed(sampling: Sampling, output: tuple[str, ...]) -> None:
    """Refuse what has no meaning for time, or for samples."""
    if not (sampling.off_cpu or sampling.wall):
        if sampling.min_block:
            raise click.UsageError("--min-block is for --off-cpu and --wall")
        return
    if sampling.wall and sampling.event not in (None, *CLOCKS):
        raise click.UsageError(f"--wall needs samples that stand for time: {' or '.join(CLOCKS)}")
    if sampling.idle:
        raise click.UsageError("--idle counts samples, not time")
    if any(path.endswith(NO_TIMES) for path in output):
        raise click.UsageError(f"{NO_TIMES} shows samples, not time off the CPU; choose another format")


def _sampled(
    arguments: tuple[str, ...],
    plan: ProfilePlan,
    backend: str | None,
    duration: float | None,
    shown: Shown,
    interrupts: Interrupts,
    *,
    top: bool,
) -> int:
    """Profile these processes, the command, or all. The exit status: of the command, or of the signal that ended it."""
    with ExitStack() as opened:
        command = None
        if arguments:
            pids = _pids(arguments)
            if pids is None:
                command = PausedCommand(arguments)
                opened.callback(command.kill)
                pids = frozenset([command.pid])
            plan = plan._replace(targets=pids)
        session, why_copies = open_session(plan, backend)
        opened.enter_context(session)
        if why_copies:
            note(why_copies)
        session.begin()
        if command:
            _resume(command, arguments[0])
        with LiveTable(shown.live(session)) if top else Live(session) as live:
            sample(session, interrupts, command, duration, live)
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

    def live(self, session: Session) -> Callable[[int], Iterator[str]]:
        """Return what makes the table of a session that goes on."""

        def lines(width: int) -> Iterator[str]:
            return table(self.named(session.collected), width)

        return lines

    def named(self, collected: Collected) -> Named:
        return group_stacks(name_stacks(collected, collapse_runtime=self.collapse_runtime), self.by)

    def __call__(self, collected: Collected) -> None:
        named = self.named(collected)
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

    def __init__(self, session: Session) -> None:
        self._session = session
        self._begin = time.monotonic()
        self._due = self._begin + LIVE_AFTER
        self._shown = False

    def refresh(self) -> bool:
        """Show the line if it is due. Return False if the profile is to end: it never is."""
        if sys.stderr.isatty() and time.monotonic() >= self._due:
            self._due = time.monotonic() + REFRESH
            self._shown = True
            amount = self._session.collected.unit.shown(self._session.samples)
            click.echo(f"\r\033[K{amount}, {time.monotonic() - self._begin:.0f} s; Ctrl-C ends", err=True, nl=False)
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._shown:
            click.echo("\r\033[K", err=True, nl=False)


def sample(
    session: Session, interrupts: Interrupts, command: PausedCommand | None, duration: float | None, live: Live | LiveTable
) -> None:
    """Sample until the time is over, a signal comes, the user ends it, or there is nothing left to sample."""
    begin = time.monotonic()
    while not interrupts.number and (command.runs() if command else session.plan.has_targets()):
        if duration and time.monotonic() - begin >= duration:
            break
        session.turn()  # is not interrupted: it may have taken records, which are nowhere else
        if not live.refresh():
            break


def _resume(command: PausedCommand, name: str) -> None:
    try:
        command.resume()
    except OSError as error:
        raise click.UsageError(f"{name}: neither a process id nor a program: {error.strerror}") from None


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
