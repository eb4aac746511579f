from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import click

from sframegen.base.text import format_count
from sframegen.cli.shared.command import Command, Example
from sframegen.cli.shared.common_options import VERBOSITY, CommonOptions
from sframegen.cli.shared.output import Refused, Run, note
from sframegen.cli.shared.write_options import FORCE_FOREIGN
from sframegen.cli.trees.each_file import TreeOptions, process_trees, tree_options

if TYPE_CHECKING:
    from linker.files.location import Location
    from sframegen.api.options import WriteOptions
    from sframegen.api.removing import SectionRemoval


@click.command(
    name="remove-tree",
    cls=Command,
    exclusive=[VERBOSITY],
    examples=[
        Example("Undo add-tree, with a line for each file", "sframegen remove-tree --verbose build/root"),
        Example("Print how many files would be restored, as JSON", "sframegen remove-tree --dry-run --json build/root"),
    ],
)
@tree_options(FORCE_FOREIGN)
def command(roots: tuple[str, ...], *, tree: TreeOptions, write_options: WriteOptions, common: CommonOptions) -> None:
    """Undo add-tree: remove the SFrame section from all programs and shared libraries below each ROOT, in place.

    Each file is restored byte for byte, unless another tool has rewritten it; then only the section is removed. Symbolic links are
    not followed; hard links stay linked. GLOBs are those of add-tree. A refused file is a warning.
    """
    run = Run()
    counts: Counter[str] = Counter()
    work = partial(_remove, write_options)
    for names, outcome in process_trees(run, roots, work, tree=tree, write_options=write_options, common=common):
        if isinstance(outcome, Refused):
            counts["refused"] += 1
            continue
        counts["restored" if outcome.restored else "taken out" if outcome.section_bytes else "without"] += 1
        for warning in () if common.quiet else outcome.warnings:
            note(f"{names[0].full}: warning: {warning}")
        run.reports.append(outcome)
        if common.verbose and not common.as_json and (outcome.section_bytes or outcome.note):
            click.echo(outcome.one_line())
    if common.prints_lines:
        would_be = "would be " if write_options.dry_run else ""
        click.echo(
            f"{format_count(counts['restored'], 'file')} {would_be}restored, {counts['taken out']:,} with the section taken out, "
            f"{counts['without']:,} without one, {counts['refused']:,} refused"
        )
    run.finish(as_json=common.as_json)


def _remove(write_options: WriteOptions, file: Location, hard_links: list[Location]) -> SectionRemoval:
    from sframegen.api.removing import remove_section  # noqa: PLC0415 - not before it is known that there are files

    return remove_section(file, replace(write_options, hard_links=hard_links))
