from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sframegen import api
from sframegen.checks.check import CONSUMERS, SHOWN, CheckReport
from sframegen.checks.finding import Severity
from sframegen.cli.shared.output import FILES, Run, json_list, note
from sframegen.cli.shared.several import JOBS, each, for_code
from sframegen.cli.trees.each_file import with_sections

if TYPE_CHECKING:
    from collections.abc import Callable


@click.command(name="check")
@FILES
@click.option(
    "--consumer",
    type=click.Choice(CONSUMERS),
    default="all",
    show_default=True,
    help="Who is to read the sections: the kernel, glibc, GNU binutils, or all of them.",
)
@click.option("--debug-file", type=click.Path(), help="Separate debug file, or a directory of them, to compare with as well.")
@click.option(
    "--instructions", is_flag=True, help="Hold sections and call frame information against what the instructions do, too."
)
@click.option(
    "--second-reader/--no-second-reader",
    default=None,
    help="Read the call frame information with pyelftools as well, and compare. Default: where it is small (a second or two).",
)
@click.option("--strict", is_flag=True, help="Warnings are errors.")
@JOBS
@click.option("-v", "--verbose", is_flag=True, help="Print notes too, all findings, and what became of all executable bytes.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, or with several FILEs or a directory a list of them.")
@click.pass_context
def command(
    ctx: click.Context,
    files: tuple[str, ...],
    *,
    consumer: str,
    debug_file: str | None,
    instructions: bool,
    second_reader: bool | None,
    strict: bool,
    jobs: int,
    verbose: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Check the SFrame section of each FILE, whoever made it: of programs and libraries, objects and archives.

    Whether it keeps to the specification, whether those who read it accept it, and whether it says, at every byte of code, what
    the call frame information says. A good section is one line; the exit status is 1 if there is an error in any.

    A directory stands for the programs and libraries below it that have a section.

    Of what is not linked, all is checked that can be: the specification, and what the call frame information says.

    With --instructions, section and call frame information are also held against what the instructions do, and files without a
    section are no error.
    """
    run = Run()
    work: Callable[..., CheckReport] = partial(
        api.examine,
        consumer=consumer,
        debug_file=debug_file or None,
        instructions=instructions,
        second_reader=second_reader,
    )
    paths = _expanded(run, files)
    if instructions or second_reader:
        work = for_code(work, paths, jobs)
    reports: list[CheckReport] = []
    for path, report in each(run, paths, work, jobs, verify=False, lines=not (quiet or as_json)):
        if strict:
            report.strict()
        if report.worst() is Severity.ERROR:
            run.status = 1
        if as_json:
            reports.append(report)
            continue
        for warning in () if quiet else report.warnings:
            note(f"{path}: warning: {warning}")
        _print(report, verbose=verbose, quiet=quiet)
    if as_json:
        sys.stdout.writelines(
            json_list((iter([json.dumps(report.to_json())]) for report in reports), several=len(files) > 1 or paths != files)
        )
    ctx.exit(run.status)


def _expanded(run: Run, files: tuple[str, ...]) -> tuple[str, ...]:
    """A directory stands for the files below it that have a section."""
    paths = []
    for file in files:
        if not Path(file).is_dir():
            paths.append(file)
            continue
        with run.file(file):
            found = with_sections(file)
            if not found:
                run.finding(f"{file}: no program or library below it has an SFrame section")
            paths += found
    return tuple(paths)


def _print(report: CheckReport, *, verbose: bool, quiet: bool) -> None:
    if quiet and report.worst() is not Severity.ERROR:
        return
    click.echo(report.one_line())
    least = Severity.ERROR if quiet else Severity.NOTE if verbose else Severity.WARNING
    for line in report.lines(least, shown=None if verbose else SHOWN):
        click.echo(line)
    for line in report.code_table() if verbose else ():
        click.echo(line)
