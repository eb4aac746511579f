from __future__ import annotations

import json
import pwd
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import click

from sframegen.base.errors import SframegenError
from sframegen.base.text import shortened
from sframegen.cli.removed_names import refuse_removed
from sframegen.cli.shared.command import CombinedValue, Command, Example, PartOption
from sframegen.cli.shared.common_options import COUNT, JSON_OBJECT, NumberInRange, duration, tid
from sframegen.cli.shared.output import SECTIONS, Run, note
from sframegen.cli.shared.profile_destinations import Naming, Shown, sample
from sframegen.cli.shared.profile_output import OUTPUT, Outputs
from sframegen.detached.stores import Stores
from sframegen.profile.backends import BACKENDS, open_session
from sframegen.profile.bpf.sampling_settings import Only
from sframegen.profile.events.attributes import EventError
from sframegen.profile.events.names import BY_NAME, CLOCKS, event_named
from sframegen.profile.following.cgroups import folder_of
from sframegen.profile.paused_command import PausedCommand
from sframegen.profile.probe import probe
from sframegen.profile.report.grouping import CGROUP, GROUPS
from sframegen.profile.sampling_plan import ProfilePlan, is_process
from sframegen.program.missing_pages import zeros_for_missing_pages
from sframegen.stack.sampling import Interrupts

if TYPE_CHECKING:
    from sframegen.cli.shared.common_options import CommonOptions
    from sframegen.profile.events.names import Event

MIB = 1 << 20
DEFAULT_EVENT = "cpu-clock"
FILTERS = ("--user", "--comm", "--cgroup")
NANOSECONDS = 1_000_000  # in a millisecond
PID_DIGITS = 9  # more than the kernel gives


def _event(_ctx: click.Context, _parameter: click.Parameter, name: str | None) -> str | None:
    """Refuse names of no event; whether this machine has one is seen later."""
    if name == "":
        raise click.BadParameter("the name is empty")
    if name is not None and name not in BY_NAME:
        if ":" in name:
            refuse_removed("profile", "--event", "CATEGORY:NAME")
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
    user: str | None
    comm: str | None
    cgroup: tuple[str, ...]
    frequency: int
    event: str | None
    kernel: bool
    idle: bool
    max_memory: int  # MiB
    buffer_size: int | None  # MiB
    backend: str | None


part_of_naming = partial(click.option, cls=PartOption, value=CombinedValue("naming", Naming))
part_of_sampling = partial(click.option, cls=PartOption, value=CombinedValue("sampling", Sampling))


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
@part_of_sampling("--system", is_flag=True, help="Sample all processes.")
@part_of_sampling("--off-cpu", is_flag=True, help="Count the time that threads do not run, by stack and reason.")
@part_of_sampling("--wall", is_flag=True, help="Show on-CPU and off-CPU time together.")
@part_of_sampling(
    "--min-block",
    metavar="MS",
    type=NumberInRange(float, 0, 1e9),
    default=0.0,
    show_default=True,
    help="With --off-cpu and --wall: leave out times off the CPU below this number of milliseconds.",
)
@click.option("--probe", "as_probe", is_flag=True, help="Print what this machine supports, and how to enable more.")
@part_of_sampling(
    "-F",
    "--frequency",
    metavar="N",
    type=NumberInRange(int, 1, 1_000_000),
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
    help="What to sample: cpu-clock, page-faults, cycles, ...; --probe prints those of this machine.  [default: cpu-clock]",
)
@part_of_sampling("--user", metavar="USER", help="Sample only threads of this user, by name or number.")
@part_of_sampling("--comm", metavar="NAME", help="Sample only threads with this name.")
@part_of_sampling(
    "--cgroup",
    metavar="PATH",
    multiple=True,
    help="Sample only processes in or below this control group (version 2), such as a container's. May be repeated.",
)
@click.option("--top", is_flag=True, help="Show the table while sampling; q ends.")
@OUTPUT
@tid("Show only this thread. May be repeated.", several=True)
@part_of_sampling("--kernel", is_flag=True, help="Include kernel frames.")
@click.option("--by", type=click.Choice(list(GROUPS)), default="comm", show_default=True, help="How to group stacks.")
@part_of_sampling("--idle", is_flag=True, help="With --system, also count samples of idle CPUs.")
@part_of_naming("--collapse-runtime", is_flag=True, help="Show the C frames of an interpreter as one frame.")
@part_of_naming(
    "--lines/--no-lines",
    default=None,
    help="Show the lines of one function apart.  [default: in formats that support lines]",
)
@part_of_naming(
    "--inlined/--no-inlined", default=None, help="Show inlined functions as frames.  [default: where debug information is at hand]"
)
@part_of_naming("--debuginfod", is_flag=True, help="Fetch missing debug files from the servers in $DEBUGINFOD_URLS.")
@part_of_sampling("--max-memory", metavar="MIB", type=COUNT, default=1024, show_default=True, help="MiB of tables in the kernel.")
@part_of_sampling(
    "--buffer-size",
    metavar="MIB",
    type=NumberInRange(int, 1, 1024),
    help="MiB of the buffer through which the kernel sends stacks.  [default: by the frequency, at most 64]",
)
@part_of_sampling(
    "--backend",
    type=click.Choice(BACKENDS),
    help="Where to walk stacks: in the kernel (BPF), or in sframegen, from copies.  [default: in the kernel if allowed]",
)
@SECTIONS
@JSON_OBJECT
@click.pass_context
def command(
    ctx: click.Context,
    arguments: tuple[str, ...],
    *,
    sampling: Sampling,
    naming: Naming,
    as_probe: bool,
    top: bool,
    duration: float | None,
    output: tuple[str, ...],
    tid: tuple[int, ...],
    by: str,
    sections: list[str],
    common: CommonOptions,
) -> None:
    """Profile processes: sample their stacks, and show where the time goes.

    PIDs are live processes; COMMAND is started and sampled. Their descendants are sampled, too. The kernel walks
    the stacks with the rules of SFrame sections; files without a section are converted in memory. Where the kernel does not allow
    that, processes of your own are sampled with copies of their stacks. Without --output, the hottest functions and stacks are
    printed. Ctrl-C and SIGTERM end the profile and print it. The exit status of COMMAND is passed on.
    """
    only = _only(sampling)
    _check(sampling, bool(arguments), as_probe, only)
    timed = sampling.off_cpu or sampling.wall
    _check_timed(sampling)
    if as_probe:
        facts = probe()
        click.echo(json.dumps(facts.fields()) if common.as_json else "\n".join(facts.lines()))
        ctx.exit(0)
    run = Run()
    shown = Shown(Outputs(run, output, common.as_json), by, naming)
    shown.outputs.check()
    if run.status:
        ctx.exit(run.status)
    stores = Stores(sections)
    status = 0
    with zeros_for_missing_pages(), run.file(""), Interrupts(at_once=False) as interrupts:
        plan = ProfilePlan(
            None, _found_event(sampling), sampling.frequency, frozenset(tid), threads=by == "tid", kernel=sampling.kernel,
            idle=sampling.idle, max_memory=sampling.max_memory * MIB, stores=stores, on_cpu=not sampling.off_cpu,
            off_cpu=timed, min_block=round(sampling.min_block * NANOSECONDS), cgroups=by == CGROUP, only=only,
            buffer_size=(sampling.buffer_size or 0) * MIB,
        )  # fmt: skip
        status = _sampled(arguments, plan, sampling.backend, duration, shown, interrupts, top=top)
    ctx.exit(status or run.status)


def _check(sampling: Sampling, has_arguments: bool, as_probe: bool, only: Only | None) -> None:
    """Refuse more than one thing to do, or none."""
    everything = sampling.system or (only is not None and not has_arguments)
    if has_arguments + everything + as_probe != 1:
        names = ", ".join(("--system", *FILTERS, "--probe"))
        raise click.UsageError(f"give one of these: process ids, a command to start, {names}")
    if sampling.idle and not sampling.system:
        raise click.UsageError("--idle is for --system")


def _found_event(sampling: Sampling) -> Event:
    try:
        return event_named(sampling.event or DEFAULT_EVENT)
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
            raise click.BadParameter(f"{shortened(sampling.user)}: no such user", param_hint="--user") from None
    try:
        cgroups = tuple(map(folder_of, sampling.cgroup))
    except SframegenError as error:
        raise click.BadParameter(str(error), param_hint="--cgroup") from None
    return Only(user, sampling.comm, cgroups)


def _check_timed(sampling: Sampling) -> None:
    """Refuse what has no meaning for time, or for samples."""
    if not (sampling.off_cpu or sampling.wall):
        if sampling.min_block:
            raise click.UsageError("--min-block is for --off-cpu and --wall")
        return
    if sampling.wall and sampling.event not in (None, *CLOCKS):
        raise click.UsageError(f"--wall needs a clock event: {' or '.join(CLOCKS)}")
    if sampling.idle:
        raise click.UsageError("--idle counts samples, not time")


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
        with shown.meanwhile(session, top=top) as live:
            sample(session, interrupts, command, duration, live)
        shown(session.finish())
        if command:
            return command.finish(interrupts)
        return 128 + interrupts.number if interrupts.number else 0


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
        raise click.UsageError("the command name is empty")
    return None
