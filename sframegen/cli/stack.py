from __future__ import annotations

import click

from sframegen.base.text import format_first
from sframegen.cli.shared.command import Command, Example
from sframegen.cli.shared.common_options import COUNT, CommonOptions, tid_option, verbose_option
from sframegen.cli.shared.output import SECTIONS, Run, note
from sframegen.detached.stores import Stores
from sframegen.stack import report
from sframegen.stack.live.process import Process
from sframegen.stack.report import Symbols
from sframegen.stack.tracer import Tracer
from sframegen.stack.walking.walk import MAX_FRAMES


@click.command(
    name="stack",
    cls=Command,
    exclusive=[("--json", "--raw")],
    examples=[
        Example("Print the stacks of a process", "sframegen stack --convert 1234"),
        Example("Print one object with the threads that do not wait", "sframegen stack --no-idle --json 1234"),
    ],
)
@click.argument("pid", metavar="PID", type=COUNT)
@tid_option("Trace only this thread.", several=False)
@click.option("--convert", is_flag=True, help="Make sections in memory from call frame information, or from instructions.")
@SECTIONS
@click.option("--no-idle", is_flag=True, help="Leave out waiting threads: neither running nor ready to run.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object, with CFAs and how each frame was found.")
@click.option("--raw", is_flag=True, help="Print addresses without names.")
@click.option(
    "--max-frames", metavar="N", type=COUNT, default=MAX_FRAMES, show_default=True, help="Maximum number of frames per thread."
)
@verbose_option("Print how long the process was stopped.")
@click.pass_context
def command(
    ctx: click.Context,
    pid: int,
    *,
    tid: int | None,
    convert: bool,
    sections: list[str],
    no_idle: bool,
    as_json: bool,
    raw: bool,
    max_frames: int,
    common: CommonOptions,
) -> None:
    """Print the stacks of all threads of a process, from SFrame sections. Where there are none, frame pointers are guesses.

    The process is stopped for a few milliseconds and then continues.
    """
    run = Run()
    stores = Stores(sections)
    tracer = Tracer(convert=convert, stores=stores, limit=max_frames)
    symbols = Symbols(tracer.objects)
    with run.working_on(""), Process(pid) as process:
        threads = [thread for thread in tracer.trace_process(process, tid) if not (no_idle and thread.idle)]
        for line in stores.take_notes():
            note(line)
        if not raw:
            symbols.load_names(pid, threads)
        sample = report.Sample(pid, process.executable, threads, round(1000 * process.stopped_seconds, 3))
        if not convert and (files := report.files_lacking_section(threads, tracer.objects)):
            consequence = "frames are missing, or guessed from frame pointers; --convert makes sections in memory"
            note(f"no SFrame section in {format_first(files)}: {consequence}")
        problems = list(tracer.problems.values())
        for problem in problems:
            run.report_finding(problem)
        if as_json:
            click.echo(report.as_json(sample, symbols, problems))
        elif threads:
            click.echo("\n".join(report.format_stacks(sample, symbols, raw=raw)))
        if common.verbose:
            note(f"process {pid}: stopped for {sample.stopped_ms:.1f} ms")
        for path, reason in process.unread.items():
            note(f"{path}: {reason}")
    ctx.exit(run.status)
