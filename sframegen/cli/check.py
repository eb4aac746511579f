from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import click

from sframegen.api.reading import check
from sframegen.checks.finding import CONSUMERS, MAX_SHOWN, CheckReport, Consumer, Severity
from sframegen.cli.shared.command import Command, Example
from sframegen.cli.shared.common_options import JOBS, JSON_LIST, QUIET, VERBOSITY, CommonOptions, debug_file_option, verbose_option
from sframegen.cli.shared.file_kinds import is_package, refuse_package
from sframegen.cli.shared.many_files import make_job_options, process_files
from sframegen.cli.shared.output import FILES, SECTIONS, Run, note
from sframegen.cli.trees.each_file import find_files_with_sections
from sframegen.program.workers import JobOptions


@click.command(
    name="check",
    cls=Command,
    exclusive=[VERBOSITY],
    examples=[
        Example("Check a program, for the Linux kernel only", "sframegen check --consumer kernel ./prog"),
        Example("Find wrong .cfi directives in an object", "sframegen check --instructions main.o"),
        Example("Check all programs and libraries of a build root", "sframegen check --quiet build/root"),
        Example("Check what is in packages", "sframegen check --quiet pool/*.deb"),
        Example("Print the rules that were broken", "sframegen check --json ./prog | jq '.[].findings[].rule'"),
    ],
)
@FILES
@click.option(
    "--consumer",
    type=click.Choice(CONSUMERS),
    default="all",
    show_default=True,
    help="Check for this reader: the kernel, glibc, GNU binutils, an arm64 kernel that walks its own stacks, or all that read such"
    " a file.",
)
@debug_file_option("to compare with as well.")
@SECTIONS
@click.option("--instructions", is_flag=True, help="Also compare sections and call frame information with the instructions.")
@click.option(
    "--second-reader",
    is_flag=True,
    help="Also read the call frame information with pyelftools, and compare: finds faults of sframegen's own reader.",
)
@click.option("--strict", is_flag=True, help="Treat warnings as errors.")
@JOBS
@verbose_option("Also print notes, all findings, and an account of all executable bytes.")
@QUIET
@JSON_LIST
def command(
    files: tuple[str, ...],
    *,
    consumer: Consumer,
    debug_file: str | None,
    sections: list[str],
    instructions: bool,
    second_reader: bool,
    strict: bool,
    common: CommonOptions,
) -> None:
    """Check the SFrame section of each FILE, whichever tool produced it: programs and libraries, objects, archives, packages.

    The section must follow the specification, its readers must accept it, and at every byte of code it must agree with the call
    frame information. A good section is one line; the exit status is 1 if any section has an error.

    A directory or package stands for the programs and libraries in it that have a section. If a package has some, and none of them
    has a section, that is an error.

    Objects and archives are checked against the specification and the call frame information; kernel modules also for the kernel
    that loads them.

    --instructions also compares the section and the call frame information with the instructions, in objects too; files without a
    section are then not an error. In objects with line numbers (-g), findings name the source line.
    """
    run = Run()
    paths = _expand_directories(run, files)

    def check_file(path: str) -> CheckReport:
        with make_job_options(paths, common.jobs) if instructions or second_reader else nullcontext(JobOptions()) as job_options:
            options: dict[str, Any] = {"consumer": consumer, "debug_file": debug_file, "sections": sections}
            options |= {"instructions": instructions, "second_reader": second_reader} | vars(job_options)
            if not is_package(path):
                return check(path, **options)
            from sframegen.packages.package_api import check_package  # noqa: PLC0415 - only for packages

            return check_package(path, **options)

    for path, checked in process_files(run, paths, check_file, common.jobs, verify=False, prints=common.prints_lines):
        report = checked.strict() if strict else checked
        if report.worst() is Severity.ERROR:
            run.status = 1
        for refused in report.package.refused if report.package else ():
            run.report_finding(f"{path}: {refused}")
        if common.as_json:
            run.reports.append(report)
            continue
        for warning in () if common.quiet else report.warnings:
            note(f"{path}: warning: {warning}")
        _print(report, verbose=common.verbose, quiet=common.quiet)
    run.finish(as_json=common.as_json)


def _expand_directories(run: Run, files: tuple[str, ...]) -> tuple[str, ...]:
    """Return the files, with each directory replaced by the files below it that have a section."""
    paths = []
    for file in files:
        if not os.path.isdir(file):  # noqa: PTH112 - also if it cannot be looked up: it is then refused as a file
            paths.append(file)
            continue
        with run.working_on(file):
            reports_before = len(run.reports)
            with_section = find_files_with_sections(run, file)
            if not with_section and len(run.reports) == reports_before:
                refuse_package(file)
                run.report_refusal(file, f"{file}: no program or library in it has an SFrame section")
            paths += with_section
    return tuple(paths)


def _print(report: CheckReport, *, verbose: bool, quiet: bool) -> None:
    """Print the report of a file; for a package, also that of each file in it, named `package: file`."""
    if quiet and report.worst() is not Severity.ERROR:
        return
    click.echo(report.one_line())
    min_severity = Severity.ERROR if quiet else Severity.NOTE if verbose else Severity.WARNING
    for line in report.lines(min_severity, shown=None if verbose else MAX_SHOWN):
        click.echo(line)
    for line in report.code_table() if verbose else ():
        click.echo(line)
    for part in report.package.files if report.package else ():
        _print(replace(part, file=f"{report.file}: {part.file}"), verbose=verbose, quiet=quiet)
