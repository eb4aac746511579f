from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from linker.files.location import locate
from linker.files.rename_into_place import write_new
from sframegen.api.add_summary import Summary, format_percent
from sframegen.api.options import AddOptions, SectionOptions, WriteOptions
from sframegen.cli.shared.adding_options import ADD_TREE, add_section_options
from sframegen.cli.shared.command import Command, Example
from sframegen.cli.shared.common_options import VERBOSITY, CommonOptions, min_coverage_option
from sframegen.cli.shared.output import PathName, Refused, Run, note, suggest_command
from sframegen.cli.trees.each_file import TreeOptions, process_trees, tree_options
from sframegen.cli.trees.tree_report import REFUSED, Entry, Totals, to_json
from sframegen.detached.detached_file import companion_of
from sframegen.elf.file import ElfFile, map_descriptor
from sframegen.elf.notes import read_build_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from linker.files.location import Location
    from sframegen.cli.trees.tree_files import Name

    Worker = Callable[[Location, list[Location]], tuple[str, Summary] | None]

STDOUT = "-"  # as the name of the report; the lines for people then go to stderr


@click.command(
    name="add-tree",
    cls=Command,
    exclusive=[VERBOSITY],
    examples=[
        Example("Add sections to a build root, and keep the outcome", "sframegen add-tree --report sframe.json build/root"),
        Example("Leave out plugins, and fail if a file is refused", "sframegen add-tree --exclude 'plugins/' --strict build/root"),
    ],
)
@tree_options(
    click.option("--report", metavar="FILE", type=PathName(), help="Write the outcome for each file as JSON; - is stdout."),
    min_coverage_option("Exit 1 if a file is refused, or the sections cover less of all code."),
    add_section_options(ADD_TREE),
)
def command(
    roots: tuple[str, ...],
    *,
    tree: TreeOptions,
    report: str | None,
    min_coverage: float | None,
    section_options: SectionOptions,
    write_options: WriteOptions,
    common: CommonOptions,
) -> None:
    """Add an SFrame section to all programs and shared libraries below each ROOT, in place. Run it on build roots after strip.

    Symbolic links are not followed; hard links stay linked. An existing section is replaced if it differs, without an option: a
    second run changes nothing. Only linked ELF files for ABIs of SFrame change; separate debug files and detached sections do not.
    A refused file is a warning.

    A GLOB without a slash matches names of files and directories. A GLOB with a slash matches paths relative to ROOT, in which **
    stands for any directories. Everything below a matching directory is left out.
    """
    if common.as_json and report == STDOUT:
        raise click.UsageError("--json and --report - exclude each other: both print on stdout")
    if min_coverage is not None:  # the code of a refused file is in no count, so its refusal has to be the finding
        tree = tree._replace(strict=True)
    run = Run()
    trees: dict[str, list[Entry]] = {root: [] for root in roots}
    work = _make_worker(section_options, write_options)
    for names, outcome in process_trees(run, roots, work, tree=tree, write_options=write_options, common=common):
        if isinstance(outcome, Refused):
            error = _without_root(names[0], outcome.error.removeprefix(f"{names[0].full}: "))
            trees[names[0].root].append(Entry(names[0].path or ".", _other_names(names), REFUSED, error))
        elif outcome is not None:
            build_id, summary = outcome
            for warning in () if common.quiet else summary.warnings:
                note(f"{names[0].full}: warning: {warning}")
            if common.verbose and not common.as_json:
                click.echo(summary.one_line(), err=report == STDOUT)
            run.reports.append(summary)
            summary = replace(summary, warnings=tuple(_without_root(names[0], warning) for warning in summary.warnings))
            trees[names[0].root].append(Entry.from_summary(names[0].path, _other_names(names), build_id, summary))

    totals = Totals(entry for entries in trees.values() for entry in entries)
    if common.prints_lines:
        click.echo(totals.one_line(dry_run=write_options.dry_run), err=report == STDOUT)
    covered, code = (totals.numbers[name] for name in ("covered_bytes", "code_bytes"))
    if min_coverage is not None and 100 * covered < min_coverage * code:
        run.report_finding(f"--min-coverage: {format_percent(covered, code)} % is below {min_coverage:g} %")
    if report == STDOUT:
        click.echo(to_json(trees), nl=False)
    elif report is not None:
        with run.working_on(report), locate(report) as location:
            write_new(location, to_json(trees).encode("ascii"), 0o666)
    if common.prints_lines and not run.status and not write_options.dry_run:
        suggest_command("sframegen check --quiet {}", *roots)
    run.finish(as_json=common.as_json)


def _make_worker(section_options: SectionOptions, write_options: WriteOptions) -> Worker:
    """Return a function that adds a section to a file; it returns None for a separate debug file or a detached section."""
    from sframegen.api.adding import add  # noqa: PLC0415 - not before it is known that there are files
    from sframegen.conversion.cfi_sections import has_debug_frame  # noqa: PLC0415

    def work(file: Location, hard_links: list[Location]) -> tuple[str, Summary] | None:
        descriptor = file.open()
        try:
            elf = ElfFile(map_descriptor(descriptor, file.path)[0], file.path)
        finally:
            os.close(descriptor)
        if companion_of(elf) is not None:
            return None
        has_debug_file = section_options.debug_file is not None and has_debug_frame(elf, Path(section_options.debug_file))
        file_options = section_options if has_debug_file else replace(section_options, debug_file=None)
        summary = add(file, AddOptions(file_options, replace(write_options, replace=True, hard_links=hard_links)))
        return (read_build_id(elf) or b"").hex(), summary

    return work


def _other_names(names: list[Name]) -> list[str]:
    """Return the names of a file after its first one that are below the same root."""
    return [name.path for name in names[1:] if name.root == names[0].root]


def _without_root(name: Name, text: str) -> str:
    """Return the text with paths below the root made relative, so that reports do not depend on where the root is."""
    for root in (os.path.realpath(name.root), name.root):
        text = re.sub(rf"(?<![\w./-]){re.escape(root.rstrip('/'))}/", "", text)  # only where a path begins
    return text
