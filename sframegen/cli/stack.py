from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from sframegen.base.errors import SframegenError
from sframegen.base.text import count_of
from sframegen.cli.shared.command import Command, Example
from sframegen.cli.shared.common_options import COUNT, Numbers, duration, tid, verbose
from sframegen.cli.shared.output import SECTIONS, Run, note
from sframegen.detached.stores import Stores
from sframegen.profile.report.formats.file_formats import FORMATS, format_of, write_profile
from sframegen.stack import report
from sframegen.stack.names.frame_names import Symbols
from sframegen.stack.sampling import Interrupts, SamplePlan, Sampler
from sframegen.stack.sampling import SampledCommand as Started
from sframegen.stack.snapshot.snapshot import StackError
from sframegen.stack.tracer import Tracer
from sframegen.stack.walking.walk import MAX_FRAMES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.cli.shared.common_options import How
    from sframegen.profile.report.traced import TracedStacks

MAX_NAMED = 3  # objects in the note that --convert may help
LENGTHS = ("--count", "--duration", "--until-exit")


def _known_format(_ctx: click.Context, _parameter: click.Parameter, path: str | None) -> str | None:
    """Refuse a file of an unknown format before the first sample is taken."""
    try:
        if path is not None:
            from sframegen.cli.shared.profile_output import refuse_gone  # noqa: PLC0415 - not for each run

            refuse_gone(path)
            format_of(path)
    except SframegenError as error:
        raise click.BadParameter(str(error)) from error
    return path


@click.command(
    name="stack",
    cls=Command,
    exclusive=[
        ("--json", "--folded", "--raw", "--output"),
        LENGTHS,
    ],
    examples=[
        Example("Print the stacks of a process", "sframegen stack --convert 1234"),
        Example("Write a flame graph of a command", "sframegen stack --until-exit -o work.html -- ./prog"),
    ],
)
@click.argument("arguments", metavar="PID | -- COMMAND...", nargs=-1, type=click.UNPROCESSED)
@tid("Trace only this thread.", several=False)
@click.option("--convert", is_flag=True, help="Make sections in memory from call frame information, or from instructions.")
@SECTIONS
@click.option("-n", "--count", metavar="N", type=COUNT, help="Number of samples to take.  [default: 1]")
@duration("Take samples for this number of seconds.")
@click.option("--until-exit", is_flag=True, help="Take samples until the process ends.")
@click.option(
    "--interval", metavar="SECONDS", type=Numbers(float, 0.0), default=0.1, show_default=True, help="Time between samples."
)
@click.option("--no-idle", is_flag=True, help="Leave out waiting threads: neither running nor ready to run.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object per sample, with CFAs and how each frame was found.")
@click.option("--folded", is_flag=True, help="Print equal stacks of all samples once, for flame graphs.")
@click.option("--raw", is_flag=True, help="Print addresses without names.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    callback=_known_format,
    help=f"Write all samples to this file; its extension selects the format: {', '.join(FORMATS)}.",
)
@click.option(
    "--max-frames", metavar="N", type=COUNT, default=MAX_FRAMES, show_default=True, help="Maximum number of frames per thread."
)
@verbose("Print how long the process was stopped.")
@click.pass_context
def command(
    ctx: click.Context,
    arguments: tuple[str, ...],
    *,
    tid: int | None,
    convert: bool,
    sections: list[str],
    count: int | None,
    duration: float | None,
    until_exit: bool,
    interval: float,
    no_idle: bool,
    as_json: bool,
    folded: bool,
    raw: bool,
    output: str | None,
    max_frames: int,
    how: How,
) -> None:
    """Print the stacks of all threads of a process, from SFrame sections. Where there are none, frame pointers are guesses.

    PID is a live process; COMMAND is started and sampled. The process is stopped for a few milliseconds and then continues. Ctrl-C
    and SIGTERM end the sampling and print the samples taken so far. The exit status of COMMAND is passed on.
    """
    if not arguments:
        raise click.UsageError("give a process id or a command to start")
    form = "json" if as_json else "folded" if folded else "raw" if raw else None
    run = Run()
    stores = Stores(sections)
    tracer = Tracer(convert=convert, stores=stores, limit=max_frames)
    symbols = Symbols(tracer.objects)
    stacks = None
    if form == "folded" or output:
        from sframegen.profile.report.traced import TracedStacks  # noqa: PLC0415 - here and below: not for each run

        stacks = TracedStacks(symbols, interval)
    printer = Output(run, symbols, form, stacks, output, verbose=how.verbose, hint=not convert, stores=stores)
    if not (count or duration or until_exit):
        count = 1
    plan = SamplePlan(interval, count, duration, tid, idle=not no_idle)
    ctx.exit(sample(arguments, tracer, plan, printer) or run.status)


class Output:
    """Samples as they come, or, if equal stacks are counted, at the end."""

    def __init__(
        self,
        run: Run,
        symbols: Symbols,
        form: str | None,
        stacks: TracedStacks | None,
        path: str | None,
        *,
        verbose: bool,
        hint: bool,
        stores: Stores,
    ) -> None:
        """`stacks`: counts equal ones; `path`: of the file for these. `hint`: `--convert` was not given, and may help."""
        self.stores = stores
        self._unread: set[str] = set()
        self.run, self.symbols, self.form, self.stacks, self.path = run, symbols, form, stacks, path
        self.verbose, self.hint = verbose, hint

    def add(self, sample: report.Sample, problems: list[str]) -> None:
        for line in self.stores.take_notes():
            note(line)
        if self.hint and (files := report.without_section(sample.threads, self.symbols.objects)):
            self.hint = False
            more = f" and {len(files) - MAX_NAMED} more" if len(files) > MAX_NAMED else ""
            note(
                f"no SFrame section in {', '.join(files[:MAX_NAMED])}{more}: frames are missing, or guessed from frame pointers;"
                " --convert makes sections in memory"
            )
        for problem in problems:
            self.run.finding(problem)
        if self.stacks:
            self.stacks.add(sample)
        elif self.form == "json":
            click.echo(report.as_json(sample, self.symbols, problems))
        elif sample.threads:
            click.echo("\n".join(report.stack_text(sample, self.symbols, raw=self.form == "raw")))
        if self.verbose:
            note(f"process {sample.pid}: stopped for {sample.stopped_ms:.1f} ms")

    def note_unread(self, files: dict[str, str]) -> None:
        """Print once which files could not be opened."""
        for path, why in files.items():
            if path not in self._unread:
                self._unread.add(path)
                note(f"{path}: {why}")

    def finish(self) -> None:
        if self.stacks and self.path:
            with self.run.file(self.path):
                from sframegen.cli.shared.output import next_to_view  # noqa: PLC0415

                write_profile(self.stacks.named(), self.path)
                next_to_view([self.path])
        elif self.stacks:
            from sframegen.profile.report.formats.texts import folded  # noqa: PLC0415

            for part in folded(self.stacks.named()):
                click.echo(part, nl=False)
        sys.stdout.flush()


@contextmanager
def findings_of(run: Run) -> Iterator[None]:
    """A process that cannot be traced ends the block, and is a finding."""
    try:
        yield
    except StackError as error:
        run.finding(str(error))


def sample(arguments: tuple[str, ...], tracer: Tracer, plan: SamplePlan, output: Output) -> int:
    """The exit status if it is not the findings': of the command; without one, of the signal that ended the sampling."""
    command = None if is_pid(arguments) else start(arguments)
    with Interrupts(at_once=command is None) as interrupts:
        sampler = Sampler(tracer, output.symbols, plan, interrupts)
        try:
            with output.run.file(""), findings_of(output.run):
                for taken, problems in sampler.samples(command.pid if command else int(arguments[0]), command):
                    output.add(taken, problems)
                    output.note_unread(sampler.unread)
            if interrupts.number:
                note(f"interrupted after {count_of(sampler.taken, 'sample')}")
            output.finish()
        except Exception:
            if command:
                command.finish(interrupts)
            raise
        if command:
            return command.finish(interrupts)
        return 128 + interrupts.number if interrupts.number else 0


def is_pid(arguments: tuple[str, ...]) -> bool:
    return len(arguments) == 1 and arguments[0].isdecimal() and arguments[0].isascii()


def start(arguments: tuple[str, ...]) -> Started:
    """Raises a usage error where there is no such program."""
    try:
        return Started(arguments)
    except OSError as error:
        if is_pid(arguments[:1]):
            raise click.UsageError("stack takes one process id; profile takes several") from None
        raise click.UsageError(f"{arguments[0]}: neither a process id nor a program: {error.strerror}") from None
