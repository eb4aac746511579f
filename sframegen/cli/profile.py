from __future__ import annotations

import json
import os
import sys
import time
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from cfi.errors import SframegenError
from sframegen.cli.shared.command import Command, Example, Part, Value
from sframegen.cli.shared.common_options import JSON_OBJECT, duration, tid
from sframegen.cli.shared.number_values import COUNT, Numbers
from sframegen.cli.shared.output import SECTIONS, PathName, Run, note
from sframegen.cli.shared.profile_output import OUTPUT, Outputs, format_for
from sframegen.detached.stores import Stores
from sframegen.elf.text import count_of, shortened
from sframegen.profile.backends import BACKENDS, open_session
from sframegen.profile.copied_session import CopiedSession
from sframegen.profile.copies.counting import Wanted
from sframegen.profile.copies.perf_data import read_perf_data
from sframegen.profile.events.attributes import EventError
from sframegen.profile.events.names import BY_NAME, event_named
from sframegen.profile.paused_command import PausedCommand
from sframegen.profile.probe import probe
from sframegen.profile.report.formats.file_formats import format_of, write_parts
from sframegen.profile.report.grouping import GROUPS, group_stacks
from sframegen.profile.report.naming import NO_DETAIL, name_stacks
from sframegen.profile.sampling_plan import ProfilePlan
from sframegen.profile.stored.intervals import IntervalDirectory, seconds_of
from sframegen.profile.symbols.debuginfod import Debuginfod
from sframegen.profile.symbols.places import PATIENT_SECONDS, SECONDS
from sframegen.profile.symbols.source_lines import Detail
from sframegen.profile.tables.table_cache import TableCache
from sframegen.program.libraries import SYMBOLS
from sframegen.program.missing_pages import zeros_for_missing_pages
from sframegen.stack.names.debug_files import DebugFiles
from sframegen.stack.sampling import Interrupts

if TYPE_CHECKING:
    from sframegen.cli.shared.common_options import How
    from sframegen.profile.backends import Session
    from sframegen.profile.collected import Collected
    from sframegen.profile.report.named import Named
    from sframegen.profile.report.naming import KnownNames

MIB = 1 << 20
LIVE_AFTER = 1.0  # seconds before the line of live figures appears
REFRESH = 0.5  # seconds
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
    buffer_size: int | None  # MiB
    backend: str | None


class Intervals(NamedTuple):
    """A profile that is written in pieces. Seconds; `every`: 0 for one profile; `keep`: 0 for ever."""

    every: float
    keep: float


class Naming(NamedTuple):
    """What frames are named with. `lines`, `inlined`: None if the user did not say."""

    lines: bool | None
    inlined: bool | None
    debuginfod: bool
    collapse_runtime: bool

    def named(self, collected: Collected, detail: Detail, known: KnownNames | None = None) -> Named:
        fetch = Debuginfod() if self.debuginfod else None
        named = name_stacks(
            collected, collapse_runtime=self.collapse_runtime, detail=detail, debug_files=DebugFiles(fetch), known=known
        )
        if fetch:
            named.notes += fetch.notes
            fetch.close()
        return named

    def detail(self) -> Detail:
        """Ends the command in one line if the user asks for what needs a library that is not installed."""
        if (self.lines or self.inlined) and (absent := [one for one in SYMBOLS if find_spec(one.module) is None]):
            from sframegen.cli.installation.install_commands import getting  # noqa: PLC0415 - not for each run

            note(f"source lines and inlined functions need {absent[0].project}; to install it: {getting(absent)}")
            click.get_current_context().exit(1)
        seconds = PATIENT_SECONDS if self.lines or self.inlined else SECONDS
        return Detail(self.lines is not False, self.inlined is not False, self.lines is True, seconds)


part_of_naming = partial(click.option, cls=Part, value=Value("naming", Naming))
part_of_sampling = partial(click.option, cls=Part, value=Value("sampling", Sampling))
part_of_intervals = partial(click.option, cls=Part, value=Value("intervals", Intervals))


def _length(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> float:
    try:
        return seconds_of(text) if text else 0.0
    except SframegenError as error:
        raise click.BadParameter(str(error)) from None


@click.command(
    name="profile",
    cls=Command,
    exclusive=[
        *(
            ("--perf-data", other)
            for other in ("--frequency", "--duration", "--max-memory", "--buffer-size", "--backend", "--every")
        ),
        *(("--probe", other) for other in ("--output", "--duration", "--system", "--perf-data", "--every")),
        ("--every", "--json"),
        ("--system", "--perf-data"),
    ],
    examples=[
        Example("Profile a command, as a flame graph", "sframegen profile -o work.html -- ./prog"),
        Example("Profile two processes for ten seconds", "sframegen profile --duration 10 1234 1235"),
        Example("Write a profile of the machine each minute, for a day", "sframegen profile --system --every 60 --keep 24h -o DIR"),
        Example("Show the last hour of these", "sframegen profile report --from 1h DIR"),
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
@OUTPUT
@part_of_intervals(
    "--every", metavar="TIME", callback=_length, help="Write a profile each time so long (60, 5m), into the directory of --output."
)
@part_of_intervals("--keep", metavar="TIME", callback=_length, help="With --every, remove profiles that are older (24h, 7d).")
@tid("Show only this thread. May be given again.", several=True)
@part_of_sampling("--kernel", is_flag=True, help="Include kernel frames.")
@click.option("--by", type=click.Choice(list(GROUPS)), default="comm", show_default=True, help="What to group stacks by.")
@part_of_sampling("--idle", is_flag=True, help="With --system, count samples of idle CPUs, too.")
@part_of_naming("--collapse-runtime", is_flag=True, help="Show the C frames of an interpreter as one frame.")
@part_of_naming(
    "--lines/--no-lines",
    default=None,
    help="Show the lines of one function apart.  [default: only formats that have a place for lines show them]",
)
@part_of_naming(
    "--inlined/--no-inlined", default=None, help="Show inlined functions as frames.  [default: where debug information is at hand]"
)
@part_of_naming("--debuginfod", is_flag=True, help="Fetch missing debug files from the servers in $DEBUGINFOD_URLS.")
@part_of_sampling("--max-memory", metavar="MIB", type=COUNT, default=1024, show_default=True, help="MiB of tables in the kernel.")
@part_of_sampling(
    "--buffer-size",
    metavar="MIB",
    type=Numbers(int, 1, 1024),
    help="MiB of the buffer through which the kernel sends stacks.  [default: by the frequency, at most 64]",
)
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
    intervals: Intervals,
    naming: Naming,
    as_probe: bool,
    duration: float | None,
    output: tuple[str, ...],
    tid: tuple[int, ...],
    by: str,
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
    if bool(arguments) + sampling.system + (perf_data is not None) + as_probe != 1:
        raise click.UsageError("give one of these: process ids, a command to start, --system, --perf-data, --probe")
    if sampling.idle and not sampling.system:
        raise click.UsageError("--idle is for --system")
    if intervals.keep and not intervals.every:
        raise click.UsageError("--keep is for --every")
    run = Run()
    if as_probe:
        found = probe()
        click.echo(json.dumps(found.fields()) if how.as_json else "\n".join(found.lines()))
        ctx.exit(0)
    if intervals.every:
        if len(output) != 1:
            raise click.UsageError("--every needs one directory: --output DIR")
        shown: Shown | Written = Written(run, output[0], intervals, naming)
        moments = False
    else:
        shown = Shown(Outputs(run, output, how.as_json), by, naming)
        shown.outputs.check()
        moments = any(format_for(path).needs_moments for path in output)
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
            plan = ProfilePlan(
                None, event_named(sampling.event or DEFAULT_EVENT), sampling.frequency, frozenset(tid), **wanted._asdict(),
                idle=sampling.idle, max_memory=sampling.max_memory * MIB, stores=stores,
                buffer_size=(sampling.buffer_size or 0) * MIB,
            )  # fmt: skip
            status = _sampled(arguments, plan, sampling.backend, duration, shown, interrupts)
    ctx.exit(status or run.status)


def _sampled(
    arguments: tuple[str, ...],
    plan: ProfilePlan,
    backend: str | None,
    duration: float | None,
    shown: Shown | Written,
    interrupts: Interrupts,
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
        if shown.every and isinstance(session, CopiedSession):
            raise SframegenError("--every needs the kernel program, which does not run here")
        sample(session, interrupts, command, duration, shown)
        shown(session.finish())
        if command:
            return command.finish(interrupts)
        return 128 + interrupts.number if interrupts.number else 0


class Shown:
    """The outputs of one profile."""

    every = 0.0

    def __init__(self, outputs: Outputs, by: str, naming: Naming) -> None:
        self.outputs = outputs
        self._by, self._naming, self._detail = by, naming, naming.detail()

    def __call__(self, collected: Collected) -> None:
        self.outputs.write(group_stacks(self._naming.named(collected, self._detail), self._by))


class Written:
    """A directory of profiles, one for each interval."""

    def __init__(self, run: Run, path: str, intervals: Intervals, naming: Naming) -> None:
        self.every = intervals.every
        self._run, self._path, self._naming = run, path, naming
        self._detail = naming.detail() if naming.lines or naming.inlined else NO_DETAIL  # which take longer than the sampling
        self._known: KnownNames = {}
        with run.file(path):
            self._directory = IntervalDirectory(path, intervals.keep)

    def __call__(self, collected: Collected) -> None:
        """Write an interval. One that cannot be written is told and lost: the next one may find room again."""
        named = self._naming.named(collected, self._detail, self._known)
        with self._run.file(self._path), self._directory.place(collected.started, collected.seconds) as place:
            write_parts(format_of(place.name).parts(group_stacks(named, "comm")), place)
            self._directory.drop_old(time.time())


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


def sample(
    session: Session,
    interrupts: Interrupts,
    command: PausedCommand | None,
    duration: float | None,
    shown: Shown | Written | None = None,
) -> None:
    """Sample until the time is over, a signal comes, or there is nothing left to sample."""
    begin = time.monotonic()
    every = shown.every if shown else 0.0
    due = begin + every
    live = Live()
    while not interrupts.number and (command.runs() if command else session.plan.has_targets()):
        now = time.monotonic()
        if duration and now - begin >= duration:
            break
        session.turn()  # is not interrupted: it may have taken records, which are nowhere else
        if shown and every and now >= due and not isinstance(session, CopiedSession):
            due += every
            shown(session.cut())
        live.show(session, now - begin)
    live.clear()


def _resume(command: PausedCommand, name: str) -> None:
    try:
        command.resume()
    except OSError as error:
        raise click.UsageError(f"{name}: neither a process id nor a program: {error.strerror}") from None


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
