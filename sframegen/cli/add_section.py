from __future__ import annotations

import shlex
from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

from linker.files.target import is_stdout
from sframegen.api.add_summary import Summary, format_categories, sum_categories
from sframegen.api.adding import add
from sframegen.api.options import AddOptions
from sframegen.base.text import format_count
from sframegen.cli.shared.adding_options import ADD_SECTION, add_section_options
from sframegen.cli.shared.command import Command, Example
from sframegen.cli.shared.common_options import JSON_LIST, QUIET, VERBOSITY, CommonOptions, min_coverage_option, verbose_option
from sframegen.cli.shared.file_kinds import is_package
from sframegen.cli.shared.many_files import change_files, make_job_options, print_change
from sframegen.cli.shared.output import FILES, Run, suggest_command
from sframegen.cli.shared.write_options import RECURSIVE, RESULT_OPTIONS, VERIFICATION, dry_run_option
from sframegen.program.workers import JobOptions

if TYPE_CHECKING:
    from sframegen.api.options import SectionOptions, StrPath, WriteOptions

MIN_COVERAGE = min_coverage_option("Exit 1 if the section covers less of the code, or a file in a package or tree is refused.")


@click.command(
    name="add-section",
    cls=Command,
    exclusive=[
        VERBOSITY,
        *((one, other) for one in ("--detached", "--object") for other in ("--output", "--unloaded", "--replace", "--recursive")),
        *(("--recursive", "--output"), ("--detached", "--object")),
    ],
    examples=[
        Example("Add a section to a program, in place", "sframegen add-section ./prog"),
        Example("Write a copy, and fail if less is covered", "sframegen add-section --min-coverage 99 -o prog.new ./prog"),
        Example("Write the section to a file of its own", "sframegen add-section --detached store ./prog"),
        Example("Make one for the next link of a kernel", "sframegen add-section --object sframe.o vmlinux.tmp"),
        Example("Add sections to all files below a directory", "sframegen add-section -r build/root"),
    ],
)
@FILES
@RECURSIVE
@add_section_options(
    ADD_SECTION, before={"optimize": (RESULT_OPTIONS, dry_run_option(), VERIFICATION), "debug_file": (MIN_COVERAGE,)}
)
@verbose_option("Account for all executable bytes, and list what was left out.")
@QUIET
@JSON_LIST
def command(
    files: tuple[str, ...],
    *,
    recursive: bool,
    section_options: SectionOptions,
    write_options: WriteOptions,
    common: CommonOptions,
    min_coverage: float | None,
) -> None:
    """Add an SFrame section to each FILE, made from its call frame information.

    Code and data keep their bytes and addresses; the section comes after the last segment. FILE is replaced only when the new
    file is complete and verified. Files without call frame information, and files that already have the same section, are left
    unchanged; with -o they are copied. A FILE with a different section is refused, unless --replace is given.

    stack, profile, lookup and check find what --detached writes with --sections DIR.

    Packages (wheels, .deb, tar archives) keep all but their programs and libraries, which get sections; a refused one is a
    warning. A signed package is refused without --force.

    Objects, and the objects of archives, get sections with relocations, as an assembler would write them. A kernel module gets one
    section, without functions of its .init sections; a signed one is refused without --force. Unpack .ko.xz and .ko.zst first.

    --object is for images that are linked several times, such as vmlinux: see docs/kernels.md.

    --synthesize adds rows for code of linked files that has no call frame information, if its instructions prove them: PLT,
    .init and .fini, the program's entry, hand-written assembly. A single FILE uses all -j processes for this.
    """
    if recursive:
        from sframegen.cli import add_tree  # noqa: PLC0415 - only for trees
        from sframegen.cli.trees.each_file import run_tree_command  # noqa: PLC0415

        options = {"section_options": section_options, "write_options": write_options, "common": common}
        run_tree_command(add_tree.command, files, section_options.debug_file, report=None, min_coverage=min_coverage, **options)
    run = Run()

    def add_to(path: str, file_options: WriteOptions) -> Summary:
        with make_job_options(files, common.jobs) if section_options.synthesize else nullcontext(JobOptions()) as job_options:
            options = AddOptions(section_options, file_options, job_options)
            if not is_package(path):
                return add(path, options)
            from sframegen.packages.package_api import add_to_package  # noqa: PLC0415 - only for packages

            return add_to_package(path, **options.keywords)

    summaries: list[Summary] = []
    for summary in change_files(run, files, add_to, write_options, common):
        summaries.append(summary)
        if common.prints_lines:
            print_change(summary, summary.details() if common.verbose else (), plan=write_options.dry_run)
        if min_coverage is not None:
            _check_coverage(run, summary, min_coverage)
    if common.verbose and not common.as_json and len(summaries) > 1:
        click.echo("\n".join([f"all {len(summaries)} files:", *format_categories(sum_categories(summaries))]))
    if common.prints_lines and not run.status and not is_stdout(common.output):
        _suggest_check(summaries, write_options.detached)
    run.finish(as_json=common.as_json)


def _suggest_check(summaries: list[Summary], store: StrPath | None) -> None:
    if store is None:
        added = [one.output for one in summaries if one.output and one.section_bytes and not one.package]
        suggest_command("sframegen check {}", *added)
    else:
        detached = [one.file for one in summaries if one.detached]
        suggest_command(f"sframegen check --sections {shlex.quote(str(store))} {{}}", *detached)


def _check_coverage(run: Run, summary: Summary, min_coverage: float) -> None:
    if summary.coverage < min_coverage:
        shortfall = "nothing was added" if not summary.section_bytes else f"{summary.coverage:.4f} % is below {min_coverage:g} %"
        run.report_finding(f"{summary.file}: --min-coverage: {shortfall}")
    if summary.package is not None and summary.package.refused:
        run.report_finding(f"{summary.file}: --min-coverage: {format_count(summary.package.refused, 'file')} in it refused")
