from __future__ import annotations

import subprocess
import time

import click

from sframegen.cli.output import Run, note
from sframegen.stack import report
from sframegen.stack.process import Process
from sframegen.stack.snapshot import StackError
from sframegen.stack.symbols import Symbols
from sframegen.stack.tracer import Tracer
from sframegen.stack.walk import MAX_FRAMES


@click.command(name="stack")
@click.argument("arguments", metavar="PID | -- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
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
    """
    run = Run()
    child = None if is_pid(arguments) else start(arguments)
    pid = child.pid if child else int(arguments[0])
    folded = report.Folded() if form == "folded" else None
    try:
        with Process(pid) as process:
            tracer = Tracer(convert=convert, limit=max_frames)
            symbols = Symbols(tracer.objects)
            for number in range(count):
                if number or child:
                    time.sleep(interval)
                sample, problems = take(process, tracer, tid)
                for problem in problems:
                    run.finding(problem)
                if folded:
                    folded.add(sample.threads, symbols)
                elif form == "json":
                    click.echo(report.as_json(sample, symbols, problems))
                elif sample.threads:
                    for line in report.text(sample, symbols, raw=form == "raw"):
                        click.echo(line)
                if verbose:
                    note(f"process {pid}: stopped for {sample.stopped_ms:.1f} ms")
    except StackError as error:
        run.finding(str(error))
    for line in folded.lines() if folded else ():
        click.echo(line)
    if child:
        child.wait()
    ctx.exit(run.status)


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
