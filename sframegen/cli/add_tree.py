from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from sframegen.api.added import percent
from sframegen.cli.shared.output import PathName, Run, in_words, note
from sframegen.cli.shared.write_options import MIN_KERNEL, UNLOADED, VERSIONS, compression, level
from sframegen.cli.trees.each_file import each_file, exclusions_of, tree_options
from sframegen.cli.trees.tree_report import REFUSED, Entry, Totals, to_json, write
from sframegen.elf.notes import build_id_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from linker.files.location import Location
    from linker.files.read_back import Reader
    from sframegen.api.added import Summary
    from sframegen.cli.trees.tree_files import Name
    from sframegen.elf.compressed import Compression
    from sframegen.tables.optimize import LevelName

STDOUT = "-"  # as a file's name, which leaves stdout to the report alone


@click.command(name="add-tree")
@tree_options(
    click.option("--report", metavar="FILE", type=PathName(), help="Write the outcome for each file as JSON; - is stdout."),
    click.option(
        "--min-coverage", type=click.FloatRange(0, 100), metavar="PCT", help="Exit 1 if the sections cover less of all code."
    ),
    click.option("--format", "version", type=VERSIONS, default="3", show_default=True, help="The SFrame version to write."),
    level("fast"),
    click.option("--synthesize", is_flag=True, help="Also describe code without call frame information, from its instructions."),
    MIN_KERNEL,
    UNLOADED,
    compression("--unloaded"),
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
    version: str,
    optimize: LevelName,
    synthesize: bool,
    min_kernel: str | None,
    unloaded: bool,
    compress: Compression | None,
    verify: bool | Reader,
    preserve_timestamps: bool,
    dry_run: bool,
    jobs: int,
    verbose: bool,
    quiet: bool,
) -> None:
    """Add an SFrame section to all programs and shared libraries below each ROOT, in place. Run it on build roots after strip.

    Symbolic links are not followed; hard links stay linked. An existing section is replaced if it differs, so a second run changes
    nothing. Only linked ELF files for ABIs of SFrame change; separate debug files do not. A refused file is a warning.

    A GLOB without a slash matches names of files and directories. A GLOB with a slash matches paths relative to ROOT, in which **
    stands for any directories. Everything below a matching directory is left out.
    """
    run = Run()
    trees: dict[str, list[Entry]] = {root: [] for root in roots}

    def refuse(names: list[Name], error: Exception) -> None:
        text = in_words(error, names[0].full)
        trees[names[0].root].append(_refused(names, text))
        if fatal:
            run.finding(text)
        elif not quiet:
            note(f"warning: {text}")

    options: dict[str, Any] = {
        "version": int(version),
        "optimize": optimize,
        "synthesize": synthesize,
        "min_kernel": min_kernel,
        "unloaded": unloaded,
        "compress": compress,
        "verify": verify,
        "preserve_timestamps": preserve_timestamps,
        "dry_run": dry_run,
    }
    work = _worker(options)
    for names, outcome in each_file(roots, exclusions_of(globs, lists), work, jobs, verify=not dry_run and verify, lines=verbose):
        if isinstance(outcome, Exception):
            refuse(names, outcome)
        elif outcome is not None:
            build_id, summary = outcome
            for warning in () if quiet else summary.warnings:
                note(f"{names[0].full}: warning: {warning}")
            if verbose and not quiet:
                click.echo(summary.one_line(), err=report == STDOUT)
            summary = replace(summary, warnings=tuple(_local(names[0], warning) for warning in summary.warnings))
            trees[names[0].root].append(Entry.of(names[0].path, _links(names), build_id, summary))

    totals = Totals(entry for entries in trees.values() for entry in entries)
    if not quiet:
        click.echo(totals.one_line(dry_run=dry_run), err=report == STDOUT)
    covered, code = (totals.numbers[name] for name in ("covered_bytes", "code_bytes"))
    if min_coverage is not None and 100 * covered < min_coverage * code:
        run.finding(f"--min-coverage: {percent(covered, code)} % is below {min_coverage:g} %")
    if report == STDOUT:
        click.echo(to_json(trees), nl=False)
    elif report is not None:
        with run.file(report):
            write(report, to_json(trees))
    ctx.exit(run.status)


def _worker(options: dict[str, Any]) -> Callable[[Location, list[Location]], tuple[str, Summary] | None]:
    """What is done to one file: its build-id and what add-section says, or None for a separate debug file."""
    from sframegen import api  # noqa: PLC0415 - takes longer than to see that there is no file for it
    from sframegen.elf.file import ElfFile  # noqa: PLC0415
    from sframegen.elf.opening import map_descriptor  # noqa: PLC0415
    from sframegen.elf.records import SHF_EXECINSTR, SHT_NOBITS  # noqa: PLC0415

    def work(file: Location, hard_links: list[Location]) -> tuple[str, Summary] | None:
        descriptor = file.open()
        try:
            elf = ElfFile(map_descriptor(descriptor, file.path)[0], file.path)
        finally:
            os.close(descriptor)
        code = [section.header.sh_type for section in elf.sections if section.header.sh_flags & SHF_EXECINSTR]
        if code and set(code) == {SHT_NOBITS}:
            return None
        summary = api.add_section(file, replace=True, hard_links=hard_links, **options)
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
