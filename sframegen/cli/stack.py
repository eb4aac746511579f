from __future__ import annotations

import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sframegen.cli.output import Run, note
from sframegen.stack import report
from sframegen.stack.corefile import Core
from sframegen.stack.process import Process
from sframegen.stack.snapshot import StackError
from sframegen.stack.symbols import Symbols
from sframegen.stack.tracer import Tracer
from sframegen.stack.walk import MAX_FRAMES

if TYPE_CHECKING:
    from collections.abc import Iterator


@click.command(name="stack")
@click.argument("arguments", metavar="PID | --core FILE | -- COMMAND...", nargs=-1, type=click.UNPROCESSED)
@click.option("--core", type=click.Path(), help="Of a core file.")
@click.option("--exe", type=click.Path(), help="The program of the core file, if it is not where it was.")
@click.option("--sysroot", type=click.Path(), help="A directory that has the other files of the core, as / had them.")
@click.option("--tid", type=click.IntRange(1), help="This thread only.")
@click.option("--convert", is_flag=True, help="Code without a section: make one in memory, of its call frame information.")
@click.option("-n", "--count", type=click.IntRange(1), default=1, show_default=True, help="So many samples.")
@click.option("--interval", type=click.FloatRange(0), default=0.1, show_default=True, help="Seconds from one to the next.")
@click.option("--json", "form", flag_value="json", help="One JSON object a sample, with CFAs and how each frame was found.")
@click.option("--folded", "form", flag_value="folded", help="Equal stacks of all samples once, for flame graphs.")
@click.option("--raw", "form", flag_value="raw", help="Addresses without names.")
@click.option("--max-frames", type=click.IntRange(1), default=MAX_FRAMES, show_default=True, help="Of one thread.")
@click.option("-v", "--verbose", is_flag=True, help="Say how long the process was stopped.")
@click.pass_context
def command(
    ctx: click.Context,
    arguments: tuple[str, ...],
    *,
    core: str | None,
    exe: str | None,
    sysroot: str | None,
    tid: int | None,
    convert: bool,
    count: int,
    interval: float,
    form: str | None,
    max_frames: int,
    verbose: bool,
) -> None:
    """Print the stacks of a process, all threads, by the SFrame sections of what it has loaded.

    PID is of a live process; COMMAND is started and sampled. The process is stopped for some milliseconds, and goes on unharmed.
    What a core file lacks is read from the files that were mapped, where they are the same still.
    """
    if (core is None) == (not arguments):
        raise click.UsageError("the id of a process, a command to start, or --core: one of these")
    if core is None and (exe or sysroot):
        raise click.UsageError("--exe and --sysroot are for --core")
    run = Run()
    tracer = Tracer(convert=convert, limit=max_frames)
    symbols = Symbols(tracer.objects)
    folded = report.Folded() if form == "folded" else None
    with run.file(core or ""), told_by(run):
        for sample, problems in of_core(core, exe, sysroot, tracer, tid) if core else live(arguments, tracer, tid, count, interval):
            for problem in problems:
                run.finding(problem)
            if folded:
                folded.add(sample.threads, symbols)
            elif form == "json":
                click.echo(report.as_json(sample, symbols, problems))
            elif sample.threads:
                for line in report.text(sample, symbols, raw=form == "raw"):
                    click.echo(line)
            if verbose and sample.stopped_ms is not None:
                note(f"process {sample.pid}: stopped for {sample.stopped_ms:.1f} ms")
    for line in folded.lines() if folded else ():
        click.echo(line)
    ctx.exit(run.status)


@contextmanager
def told_by(run: Run) -> Iterator[None]:
    """What cannot be traced ends the block, and is a finding."""
    try:
        yield
    except StackError as error:
        run.finding(str(error))


def of_core(
    path: str, exe: str | None, sysroot: str | None, tracer: Tracer, tid: int | None
) -> Iterator[tuple[report.Sample, list[str]]]:
    """The one sample that a core is. Raises StackError, FormatError."""
    core = Core(path, Path(exe) if exe else None, Path(sysroot) if sysroot else None, tid)
    threads = tracer.trace(core)
    for remark in core.remarks():
        note(f"{path}: {remark}")
    yield report.Sample(core.pid, core.executable, threads, None), list(tracer.problems.values())


def live(
    arguments: tuple[str, ...], tracer: Tracer, tid: int | None, count: int, interval: float
) -> Iterator[tuple[report.Sample, list[str]]]:
    """Samples of a process, which is waited for if it was started here. Raises StackError."""
    child = None if is_pid(arguments) else start(arguments)
    try:
        with Process(child.pid if child else int(arguments[0])) as process:
            for number in range(count):
                if number or child:
                    time.sleep(interval)
                yield take(process, tracer, tid)
    finally:
        if child:
            child.wait()


def is_pid(arguments: tuple[str, ...]) -> bool:
    return len(arguments) == 1 and arguments[0].isdecimal() and arguments[0].isascii()


def start(arguments: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """Raises a usage error where there is no such program."""
    try:
        return subprocess.Popen(arguments)
    except OSError as error:
        raise click.UsageError(f"{arguments[0]}: neither the id of a process nor a program: {error.strerror}") from None


def take(process: Process, tracer: Tracer, tid: int | None) -> tuple[report.Sample, list[str]]:
    """One sample, and what could not be had."""
    before = process.stopped_seconds
    threads = tracer.trace_process(process, tid)
    stopped_ms = 1000 * (process.stopped_seconds - before)
    return report.Sample(process.pid, process.executable, threads, round(stopped_ms, 3)), list(tracer.problems.values())
