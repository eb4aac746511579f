from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sframegen.api.added import percent
from sframegen.cli.shared.adding_options import ADD_TREE, adding
from sframegen.cli.shared.command import Command, Example
from sframegen.cli.shared.common_options import VERBOSE_OR_QUIET, min_coverage
from sframegen.cli.shared.output import PathName, Refused, Run, next_step, note
from sframegen.cli.trees.each_file import each_file, tree_options
from sframegen.cli.trees.tree_report import REFUSED, Entry, Totals, to_json, write
from sframegen.elf.notes import build_id_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from linker.files.location import Location
    from sframegen.api.added import Summary
    from sframegen.cli.shared.common_options import How
    from sframegen.cli.trees.each_file import Tree
    from sframegen.cli.trees.tree_files import Name

STDOUT = "-"  # as a file's name, which leaves stdout to the report alone


@click.command(
    name="add-tree",
    cls=Command,
    exclusive=[VERBOSE_OR_QUIET],
    examples=[
        Example("Add sections to a build root, and keep the outcome", "sframegen add-tree --report sframe.json build/root"),
        Example("Leave out plugins, and fail if a file is refused", "sframegen add-tree --exclude 'plugins/' --fatal build/root"),
    ],
)
@tree_options(
    click.option("--report", metavar="FILE", type=PathName(), help="Write the outcome for each file as JSON; - is stdout."),
    min_coverage("Exit 1 if the sections cover less of all code."),
    adding(ADD_TREE),
)
def command(
    roots: tuple[str, ...],
    *,
    tree: Tree,
    report: str | None,
    min_coverage: float | None,
    keywords: dict[str, Any],
    how: How,
) -> None:
    """Add an SFrame section to all programs and shared libraries below each ROOT, in place. Run it on build roots after strip.

    Symbolic links are not followed; hard links stay linked. An existing section is replaced if it differs, without an option: a
    second run changes nothing. Only linked ELF files for ABIs of SFrame change; separate debug files and detached sections do not.
    A refused file is a warning.

    A GLOB without a slash matches names of files and directories. A GLOB with a slash matches paths relative to ROOT, in which **
    stands for any directories. Everything below a matching directory is left out.
    """
    if how.as_json and report == STDOUT:
        raise click.UsageError("--json and --report - exclude each other: both print on stdout")
    run = Run()
    trees: dict[str, list[Entry]] = {root: [] for root in roots}
    for names, outcome in each_file(run, roots, _worker(keywords), tree=tree, keywords=keywords, how=how):
        if isinstance(outcome, Refused):
            trees[names[0].root].append(_refused(names, outcome.error))
        elif outcome is not None:
            build_id, summary = outcome
            for warning in () if how.quiet else summary.warnings:
                note(f"{names[0].full}: warning: {warning}")
            if how.verbose and not how.as_json:
                click.echo(summary.one_line(), err=report == STDOUT)
            run.reports.append(summary)
            summary = replace(summary, warnings=tuple(_local(names[0], warning) for warning in summary.warnings))
            trees[names[0].root].append(Entry.of(names[0].path, _links(names), build_id, summary))

    totals = Totals(entry for entries in trees.values() for entry in entries)
    if how.prints_lines:
        click.echo(totals.one_line(dry_run=keywords["dry_run"]), err=report == STDOUT)
    covered, code = (totals.numbers[name] for name in ("covered_bytes", "code_bytes"))
    if min_coverage is not None and 100 * covered < min_coverage * code:
        run.finding(f"--min-coverage: {percent(covered, code)} % is below {min_coverage:g} %")
    if report == STDOUT:
        click.echo(to_json(trees), nl=False)
    elif report is not None:
        with run.file(report):
            write(report, to_json(trees))
    if how.prints_lines and not run.status and not keywords["dry_run"]:
        next_step("sframegen check --quiet {}", *roots)
    run.end(as_json=how.as_json)


def _worker(keywords: dict[str, Any]) -> Callable[[Location, list[Location]], tuple[str, Summary] | None]:
    """Return what works on one file: gives its build-id and summary, or None for a separate debug file or a detached section."""
    from sframegen import api  # noqa: PLC0415 - takes longer than to see that there is no file for it
    from sframegen.conversion.sources import has_debug_frame  # noqa: PLC0415
    from sframegen.detached.companion import companion_of  # noqa: PLC0415
    from sframegen.elf.file import ElfFile, map_descriptor  # noqa: PLC0415

    debug_files = keywords["debug_file"]

    def work(file: Location, hard_links: list[Location]) -> tuple[str, Summary] | None:
        descriptor = file.open()
        try:
            elf = ElfFile(map_descriptor(descriptor, file.path)[0], file.path)
        finally:
            os.close(descriptor)
        if companion_of(elf) is not None:
            return None
        has_debug_file = debug_files and has_debug_frame(elf, Path(debug_files))
        own = keywords if has_debug_file else keywords | {"debug_file": None}
        summary = api.add_section(file, replace=True, hard_links=hard_links, **own)
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
