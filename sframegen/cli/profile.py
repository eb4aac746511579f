from __future__ import annotations

import shutil
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import click

from cfi.errors import SframegenError
from sframegen.cli.shared.output import Run, note
from sframegen.elf.text import count_of
from sframegen.profile.events.names import event_named
from sframegen.profile.paused_command import PausedCommand
from sframegen.profile.report.formats.file_formats import FORMATS, Format, format_of, write
from sframegen.profile.report.formats.summary import summary
from sframegen.profile.report.grouping import GROUPS, group
from sframegen.profile.report.naming import name_stacks
from sframegen.profile.report.table import table, totals
from sframegen.profile.session import KernelSession, Plan
from sframegen.stack.sampling import Interrupts

if TYPE_CHECKING:
    from sframegen.profile.collected import Collected

MIB = 1 << 20
LIVE_AFTER = 1.0  # seconds before the line of live figures appears
REFRESH = 0.5  # seconds
WIDTH = 100  # columns, where there is no terminal


@click.command(name="profile")
@click.argument("arguments", metavar="PID... | -- COMMAND...", nargs=-1, type=click.UNPROCESSED)
@click.option("--system", is_flag=True, help="Sample all processes.")
@click.option(
    "-F", "--frequency", type=click.IntRange(1, 1_000_000), default=99, show_default=True, help="Samples per second and CPU."
)
@click.option("-d", "--duration", type=click.FloatRange(0, min_open=True), help="Stop after this number of seconds.")
@click.option("-e", "--event", default="cpu-clock", show_default=True, help="What to sample: cpu-clock, page-faults, cycles, ...")
@click.option(
    "-o",
    "--output",
    multiple=True,
    type=click.Path(),
    help=f"Write to this file, in the format of its ending: {', '.join(FORMATS)}. May be given again.",
)
@click.option("--tid", type=click.IntRange(1), multiple=True, help="Sample only this thread. May be given again.")
@click.option("--kernel", is_flag=True, help="Include the frames of the kernel.")
@click.option("--by", type=click.Choice(list(GROUPS)), default="comm", show_default=True, help="What to group stacks by.")
@click.option("--idle", is_flag=True, help="With --system, count idle CPUs, too.")
@click.option("--collapse-runtime", is_flag=True, help="Show the C frames of an interpreter as one frame.")
@click.option("--max-memory", type=click.IntRange(1), default=1024, show_default=True, help="MiB of tables in the kernel.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.pass_context
def command(
    ctx: click.Context,
    arguments: tuple[str, ...],
    *,
    system: bool,
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
    as_json: bool,
) -> None:
    """Profile processes: sample their stacks, and show where the time goes.

    PIDs are live processes; COMMAND is started and sampled. Their children are sampled, too. The kernel walks the stacks with the
    rules of SFrame sections; files without a section are converted in memory. Without --output, the hottest functions and stacks
    are printed. Ctrl-C and SIGTERM end the profile and print it. The exit status of COMMAND is passed on.
    """
    if bool(arguments) + system != 1:
        raise click.UsageError("give one of these: process ids, a command to start, or --system")
    if idle and not system:
        raise click.UsageError("--idle is for --system")
    formats = [_format(path) for path in output]
    run = Run()
    shown = Shown(run, output, by, collapse_runtime=collapse_runtime, as_json=as_json)
    status = 0
    with run.file(""), Interrupts(at_once=False) as interrupts, ExitStack() as opened:
        pids = frozenset(map(int, arguments)) if all(map(_is_pid, arguments)) else None
        command = None
        if arguments and pids is None:
            command = PausedCommand(arguments)
            opened.callback(command.kill)
            pids = frozenset([command.pid])
        plan = Plan(
            None if system else pids,
            event_named(event),
            frequency,
            frozenset(tid),
            threads=by == "tid" or any(one.needs_moments for one in formats),
            kernel=kernel,
            idle=idle,
            moments=any(one.needs_moments for one in formats),
            max_memory=max_memory * MIB,
        )
        session = opened.enter_context(KernelSession(plan))
        session.begin()
        if command:
            _resume(command, arguments[0])
        _sample(session, interrupts, command, duration)
        collected = session.finish()
        shown(collected)
        if command:
            status = command.finish(interrupts)
    ctx.exit(status or run.status)


class Shown(NamedTuple):
    """What becomes of a profile."""

    run: Run
    output: tuple[str, ...]
    by: str
    collapse_runtime: bool
    as_json: bool

    def __call__(self, collected: Collected) -> None:
        named = group(name_stacks(collected, collapse_runtime=self.collapse_runtime), self.by)
        for path in self.output:
            with self.run.file(path):
                write(named, path)
        if self.as_json:
            click.echo("".join(summary(named)), nl=False)
        elif self.output:
            for line in totals(named):
                if line:
                    note(line)
        else:
            for line in table(named, shutil.get_terminal_size((WIDTH, 24)).columns):
                click.echo(line)


class Live:
    """One line of figures on a terminal, while it samples."""

    def __init__(self) -> None:
        self._due = time.monotonic() + LIVE_AFTER
        self._shown = False

    def show(self, session: KernelSession) -> None:
        if not sys.stderr.isatty() or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + REFRESH
        self._shown = True
        line = f"{count_of(session.samples, 'sample')}, {session.seconds:.0f} s; Ctrl-C ends"
        click.echo(f"\r\033[K{line}", err=True, nl=False)

    def clear(self) -> None:
        if self._shown:
            click.echo("\r\033[K", err=True, nl=False)


def _sample(session: KernelSession, interrupts: Interrupts, command: PausedCommand | None, duration: float | None) -> None:
    """Sample until the time is over, a signal comes, or there is nothing left to sample."""
    end = time.monotonic() + duration if duration else float("inf")
    live = Live()
    while not interrupts.number and time.monotonic() < end and (command.runs() if command else session.has_targets()):
        interrupts.wait(session.turn)
        live.show(session)
    live.clear()


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


def _is_pid(argument: str) -> bool:
    return argument.isdecimal() and argument.isascii()
