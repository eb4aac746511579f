from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack, closing
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Self

import click

from sframegen.base.text import cut_middle
from sframegen.cli.removed_names import refuse_removed
from sframegen.cli.shared.command import CombinedValue, Command, Example, PartOption
from sframegen.cli.shared.common_options import JSON_OBJECT, SECONDS, CommonOptions, NumberRange, common_option, tid_option
from sframegen.cli.shared.output import SECTIONS, Run, note
from sframegen.cli.shared.profile_output import OUTPUT, Outputs, compose_title
from sframegen.detached.stores import Stores
from sframegen.profile.copied_session import BACKENDS, Session, open_session
from sframegen.profile.events.attributes import EventError
from sframegen.profile.events.names import BY_NAME, CLOCKS, CPU_CLOCK, Event, find_event
from sframegen.profile.paused_command import PausedCommand
from sframegen.profile.probe import probe
from sframegen.profile.report.label_trees import group_stacks
from sframegen.profile.report.naming import name_stacks
from sframegen.profile.report.source_lines import FrameDetail
from sframegen.profile.sampling_plan import Grouping, ProfilePlan, is_process
from sframegen.program.libraries import SYMBOLIC
from sframegen.program.own_memory import zeros_for_missing_pages
from sframegen.program.signals import Interrupts

if TYPE_CHECKING:
    from collections.abc import Callable

    from sframegen.profile.collected import Collected
    from sframegen.profile.report.named import NamedProfile

MAX_PID_DIGITS = 9  # more than a process id of Linux has
LIVE_AFTER = 1.0  # seconds before the line of live figures appears
REFRESH_INTERVAL = 0.5  # seconds


def _parse_event(_ctx: click.Context, _parameter: click.Parameter, name: str | None) -> Event:
    """Return the event of that name. Raises BadParameter if it is unknown; the default is not checked, since --probe needs none."""
    if name is None:
        return CPU_CLOCK
    if not name:
        raise click.BadParameter("the name is empty")
    if ":" in name and name not in BY_NAME:
        refuse_removed("profile", "--event", "CATEGORY:NAME")
    try:
        return find_event(name)
    except EventError as error:
        raise click.BadParameter(str(error)) from None


part_of_detail = partial(click.option, cls=PartOption, value=CombinedValue("detail", FrameDetail))
part_of_plan = partial(click.option, cls=PartOption, value=CombinedValue("plan", ProfilePlan))


@click.command(
    name="profile",
    cls=Command,
    exclusive=[
        *(("--probe", other) for other in ("--output", "--duration", "--system")),
        ("--off-cpu", "--wall"),
        *(("--off-cpu", other) for other in ("--event", "--frequency")),
    ],
    examples=[
        Example("Profile a command, as a flame graph", "sframegen profile -o work.html -- ./prog"),
        Example("Profile two processes for ten seconds", "sframegen profile --duration 10 1234 1235"),
        Example("Show where threads wait, and for what", "sframegen profile --off-cpu -d 10 1234"),
        Example("Print what this machine allows", "sframegen profile --probe"),
    ],
)
@click.argument("arguments", metavar="PID... | -- COMMAND...", nargs=-1, type=click.UNPROCESSED)
@click.option("--system", is_flag=True, help="Sample all processes.")
@part_of_plan("--off-cpu", is_flag=True, help="Show where threads wait: time off the CPU, by stack and reason.")
@part_of_plan("--wall", is_flag=True, help="Show on-CPU and off-CPU time together.")
@click.option("--probe", "as_probe", is_flag=True, help="Print what this machine supports, and how to enable more.")
@part_of_plan(
    "-F",
    "--frequency",
    metavar="N",
    type=NumberRange(int, 1, 1_000_000),
    default=99,
    show_default=True,
    help="Samples per second on each CPU. For events without a clock, such as page-faults, sample every Nth.",
)
@click.option("-d", "--duration", metavar="SECONDS", type=SECONDS, help="Stop after this number of seconds.")
@part_of_plan(
    "-e",
    "--event",
    metavar="EVENT",
    callback=_parse_event,
    help="What to sample: cpu-clock, page-faults, cycles, ...; --probe lists those of this machine.  [default: cpu-clock]",
)
@part_of_plan("--comm", metavar="NAME", help="Sample only threads with this name.")
@OUTPUT
@tid_option("Show only this thread. May be repeated.", several=True)
@part_of_plan("--kernel", is_flag=True, help="Include kernel frames.")
@part_of_plan(
    "--by",
    type=click.Choice([group.value for group in Grouping]),
    default=Grouping.COMM.value,
    show_default=True,
    help="How to group stacks.",
)
@part_of_detail(
    "--lines", "by_line", is_flag=True, help="Show source lines as separate frames in formats that do not do so anyway."
)
@part_of_detail("--no-inlined", "inlined", flag_value=False, default=True, help="Do not show inlined functions as frames.")
@click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    help="Where to walk stacks: in the kernel (BPF), or in sframegen, from copies.  [default: in the kernel if allowed]",
)
@SECTIONS
@common_option("-q", "--quiet", is_flag=True, help="Print no notes, and with --output only errors.")
@JSON_OBJECT
@click.pass_context
def command(
    ctx: click.Context,
    arguments: tuple[str, ...],
    *,
    plan: ProfilePlan,
    detail: FrameDetail,
    system: bool,
    as_probe: bool,
    duration: float | None,
    output: tuple[str, ...],
    tid: tuple[int, ...],
    backend: str | None,
    sections: list[str],
    common: CommonOptions,
) -> None:
    """Profile processes: sample their stacks, and show where the time goes.

    PIDs are live processes; COMMAND is started and sampled. Their descendants are sampled, too. The kernel walks
    the stacks with the rules of SFrame sections; files without a section are converted in memory. Where the kernel does not allow
    that, processes of your own are sampled with copies of their stacks. Without --output, the hottest functions and stacks are
    printed. Ctrl-C and SIGTERM end the profile and print it. The exit status of COMMAND is passed on.
    """
    if bool(arguments) + (system or (plan.comm is not None and not arguments)) + as_probe != 1:
        raise click.UsageError("give one of these: process ids, a command to start, --system, --comm, --probe")
    if plan.wall and plan.event.name not in CLOCKS:
        raise click.UsageError(f"--wall needs a clock event: {' or '.join(CLOCKS)}")
    if as_probe:
        facts = probe()
        click.echo(json.dumps(facts.json_fields()) if common.as_json else "\n".join(facts.report_lines()))
        ctx.exit(0)
    run = Run()
    outputs = Outputs(run, output, common.as_json, common.quiet)
    _require_library(detail)
    outputs.check()
    if run.status:
        ctx.exit(run.status)
    plan = plan._replace(tids=frozenset(tid), stores=Stores(sections))
    status = 0
    with zeros_for_missing_pages(), run.working_on(""), Interrupts() as interrupts:
        title = partial(compose_title, arguments=arguments, comm=plan.comm)
        write = partial(_write_named, by=plan.by, detail=detail, outputs=outputs, title=title)
        status = _profile(arguments, plan, backend, duration, interrupts, write, quiet=common.quiet)
    ctx.exit(status or run.status)


def _require_library(detail: FrameDetail) -> None:
    """End the command with one line if the user asks for source lines, but the library that reads them is not installed."""
    if detail.by_line and find_spec(SYMBOLIC.module) is None:
        from sframegen.cli.shared.install_commands import install_command  # noqa: PLC0415 - not for each run

        note(f"source lines and inlined functions need {SYMBOLIC.project}; to install it: {install_command([SYMBOLIC])}")
        click.get_current_context().exit(1)


def _profile(
    arguments: tuple[str, ...],
    plan: ProfilePlan,
    backend: str | None,
    duration: float | None,
    interrupts: Interrupts,
    write: Callable[[Collected], None],
    *,
    quiet: bool,
) -> int:
    """Profile processes, a command, or everything; return the command's exit status, or 128 + the signal that ended the profile."""
    with ExitStack() as opened:
        command = None
        if arguments:
            pids = _parse_pids(arguments)
            if pids is not None:
                _check_threads(plan.tids)
            else:
                command = PausedCommand(arguments)
                opened.callback(command.kill)
                pids = frozenset([command.pid])
            plan = plan._replace(targets=pids, after_exec=command is not None)
        session, reason_for_copies = open_session(plan, backend)
        opened.enter_context(closing(session))
        if reason_for_copies and not quiet:
            note(reason_for_copies)
        session.begin()
        if command:
            _resume(command, arguments[0])
        sample_until_end(session, interrupts, command, duration, quiet=quiet)
        write(session.finish())
        if command:
            return command.finish(interrupts)
        return 128 + interrupts.number if interrupts.number else 0


def sample_until_end(
    session: Session, interrupts: Interrupts, command: PausedCommand | None, duration: float | None, *, quiet: bool = False
) -> None:
    """Sample until the duration is over, a signal arrives, or no process is left to sample."""
    begin = time.monotonic()
    with LiveLine(session) as live:
        while not interrupts.number and (command.is_running() if command else session.plan.has_running_targets()):
            if duration and time.monotonic() - begin >= duration:
                break
            session.advance()  # signals do not interrupt this, which may have records that would be lost
            if not quiet:
                live.refresh()


class LiveLine:
    """A line on the terminal with the number of samples and the time so far."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._begin = time.monotonic()
        self._due = self._begin + LIVE_AFTER
        self._printed = False

    def refresh(self) -> None:
        """Print the line if its next update is due."""
        if sys.stderr.isatty() and time.monotonic() >= self._due:
            self._due = time.monotonic() + REFRESH_INTERVAL
            self._printed = True
            amount = self._session.collected.unit.describe(self._session.samples)
            click.echo(f"\r\033[K{amount}, {time.monotonic() - self._begin:.0f} s; Ctrl-C ends", err=True, nl=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._printed:
            click.echo("\r\033[K", err=True, nl=False)


def _write_named(
    collected: Collected, *, by: str, detail: FrameDetail, outputs: Outputs, title: Callable[[NamedProfile], str]
) -> None:
    """Give names to the collected frames, and write the profile to all outputs."""
    collected.stacks.room.release_pages()  # release memory now, since the processes that read debug information need it
    named = name_stacks(collected, detail)
    collected.stacks.close()
    named.title = title(named)
    outputs.write(group_stacks(named, by))


def _resume(command: PausedCommand, name: str) -> None:
    try:
        command.resume()
    except OSError as error:
        raise click.UsageError(f"{name}: neither a process id nor a program: {error.strerror}") from None


def _check_threads(tids: frozenset[int]) -> None:
    """Warn of threads that do not exist, before the user waits for their samples. It is no error, as they may start later."""
    for number in sorted(tids):
        if not is_process(number):  # works for threads, which have directories in /proc, too
            note(f"--tid {number}: no such thread")


def _parse_pids(arguments: tuple[str, ...]) -> frozenset[int] | None:
    """Return the process ids; None if the arguments are a command."""
    other_words = [argument for argument in arguments if not (argument.isdecimal() and argument.isascii())]
    if not other_words:
        if too_long := [argument for argument in arguments if len(argument) > MAX_PID_DIGITS]:
            raise click.UsageError(f"{cut_middle(too_long[0])}: not a process id")
        return frozenset(map(int, arguments))
    if other_words[0] != arguments[0]:
        raise click.UsageError(f"{other_words[0]}: not a process id, and {arguments[0]} is one")
    if not arguments[0]:
        raise click.UsageError("the command name is empty")
    return None
