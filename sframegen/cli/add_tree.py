from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sframegen.api.added import percent
from sframegen.cli.shared.command import Command, Example
from sframegen.cli.shared.common_options import FORCE_ADD, SYNTHESIZE, VERBOSE_OR_QUIET, min_coverage
from sframegen.cli.shared.output import Directory, PathName, Refused, Run, in_words, note
from sframegen.cli.shared.write_options import MIN_KERNEL, READ_BACK_OR_NOT, UNLOADED, compression, format_version, level
from sframegen.cli.trees.each_file import each_file, exclusions_of, tree_options
from sframegen.cli.trees.tree_report import REFUSED, Entry, Totals, to_json, write
from sframegen.elf.notes import build_id_of
from sframegen.program.turn import FaultError

if TYPE_CHECKING:
    from collections.abc import Callable

    from linker.files.location import Location
    from linker.files.read_back import Reader
    from sframegen.api.added import Summary
    from sframegen.cli.trees.tree_files import Name
    from sframegen.elf.compressed import Compression
    from sframegen.format.layouts import FormatVersion
    from sframegen.tables.optimize import LevelName

STDOUT = "-"  # as a file's name, which leaves stdout to the report alone


@click.command(
    name="add-tree",
    cls=Command,
    exclusive=[VERBOSE_OR_QUIET, READ_BACK_OR_NOT],
    examples=[
        Example("Add sections to a build root, and keep the outcome", "sframegen add-tree --report sframe.json build/root"),
        Example("Leave out plugins, and fail if a file is refused", "sframegen add-tree --exclude 'plugins/' --fatal build/root"),
    ],
)
@tree_options(
    click.option("--report", metavar="FILE", type=PathName(), help="Write the outcome for each file as JSON; - is stdout."),
    min_coverage("Exit 1 if the sections cover less of all code."),
    format_version(),
    level("fast"),
    click.option(
        "--debug-file",
        metavar="DIR",
        type=Directory(),
        help="Directory with separate debug files, for code that the .eh_frame of their files does not describe.",
    ),
    SYNTHESIZE,
    MIN_KERNEL,
    UNLOADED,
    compression("--unloaded"),
    FORCE_ADD,
)
@click.pass_context
def command(
    ctx: click.Context,
    roots: tuple[str, ...],
    *,
    globs: tuple[str, ...],
    lists: tuple[str, ...],
    report: str | None,
    min_coverage: float | None,
    fatal: bool,
    version: FormatVersion,
    optimize: LevelName,
    debug_file: str | None,
    synthesize: bool,
    min_kernel: str | None,
    unloaded: bool,
    compress: Compression | None,
    force: bool,
    verify: bool | Reader,
    preserve_timestamps: bool,
    dry_run: bool,
    jobs: int,
    verbose: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Add an SFrame section to all programs and shared libraries below each ROOT, in place. Run it on build roots after strip.

    Symbolic links are not followed; hard links stay linked. An existing section is replaced if it differs, without an option: a
    second run changes nothing. Only linked ELF files for ABIs of SFrame change; separate debug files and detached sections do not.
    A refused file is a warning.

    A GLOB without a slash matches names of files and directories. A GLOB with a slash matches paths relative to ROOT, in which **
    stands for any directories. Everything below a matching directory is left out.
    """
    if as_json and report == STDOUT:
        raise click.UsageError("--json and --report - exclude each other: both print on stdout")
    run = Run()
    trees: dict[str, list[Entry]] = {root: [] for root in roots}

    def refuse(names: list[Name], error: Exception) -> None:
        text = in_words(error, names[0].full)
        trees[names[0].root].append(_refused(names, text))
        run.reports.append(Refused(names[0].full, text))
        if fatal or isinstance(error, FaultError):
            run.finding(text)
        elif not quiet:
            note(f"warning: {text}")

    options: dict[str, Any] = {
        "version": version,
        "optimize": optimize,
        "synthesize": synthesize,
        "min_kernel": min_kernel,
        "unloaded": unloaded,
        "compress": compress,
        "force": force,
        "verify": verify,
        "preserve_timestamps": preserve_timestamps,
        "dry_run": dry_run,
    }
    work = _worker(options, debug_file)
    for names, outcome in each_file(roots, exclusions_of(globs, lists), work, jobs, verify=not dry_run and verify, lines=verbose):
        if isinstance(outcome, Exception):
            refuse(names, outcome)
        elif outcome is not None:
            build_id, summary = outcome
            for warning in () if quiet else summary.warnings:
                note(f"{names[0].full}: warning: {warning}")
            if verbose and not as_json:
                click.echo(summary.one_line(), err=report == STDOUT)
            run.reports.append(summary)
            summary = replace(summary, warnings=tuple(_local(names[0], warning) for warning in summary.warnings))
            trees[names[0].root].append(Entry.of(names[0].path, _links(names), build_id, summary))

    totals = Totals(entry for entries in trees.values() for entry in entries)
    if not (quiet or as_json):
        click.echo(totals.one_line(dry_run=dry_run), err=report == STDOUT)
    covered, code = (totals.numbers[name] for name in ("covered_bytes", "code_bytes"))
    if min_coverage is not None and 100 * covered < min_coverage * code:
        run.finding(f"--min-coverage: {percent(covered, code)} % is below {min_coverage:g} %")
    if report == STDOUT:
        click.echo(to_json(trees), nl=False)
    elif report is not None:
        with run.file(report):
            write(report, to_json(trees))
    if as_json:
        run.print_json()
    ctx.exit(run.status)


def _worker(options: dict[str, Any], debug_files: str | None) -> Callable[[Location, list[Location]], tuple[str, Summary] | None]:
    """What is done to one file: its build-id and what add-section says, or None for a separate debug file or a detached section."""
    from sframegen import api  # noqa: PLC0415 - takes longer than to see that there is no file for it
    from sframegen.conversion.sources import has_debug_frame  # noqa: PLC0415
    from sframegen.detached.companion import companion_of  # noqa: PLC0415
    from sframegen.elf.file import ElfFile  # noqa: PLC0415
    from sframegen.elf.opening import map_descriptor  # noqa: PLC0415

    def work(file: Location, hard_links: list[Location]) -> tuple[str, Summary] | None:
        descriptor = file.open()
        try:
            elf = ElfFile(map_descriptor(descriptor, file.path)[0], file.path)
        finally:
            os.close(descriptor)
        if companion_of(elf) is not None:
            return None
        debug_file = debug_files if debug_files and has_debug_frame(elf, Path(debug_files)) else None
        summary = api.add_section(file, replace=True, hard_links=hard_links, debug_file=debug_file, **options)
        return (build_id_of(elf) or b"").hex(), summary

    return work


def _refused(names: list[Name], text: str) -> Entry:
    return Entry(names[0].path or ".", _links(names), REFUSED, _local(names[0], text.removeprefix(f"{names[0].full}: ")))


def _links(names: list[Name]) -> list[str]:
    """In the same root."""
    return [name.path for name in names[1:] if name.root == names[0].root]


def _local(name: Name, text: str) -> str:
    """Without the place of the root."""
    for place in (os.path.realpath(name.root), name.root):
        text = re.sub(rf"(?<![\w./-]){re.escape(place.rstrip('/'))}/", "", text)
    return text
