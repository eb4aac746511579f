from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import click

from sframegen.cli.shared.command import Command, Example
from sframegen.cli.shared.common_options import FORCE_FOREIGN, VERBOSE_OR_QUIET
from sframegen.cli.shared.output import Refused, Run, in_words, note
from sframegen.cli.shared.write_options import READ_BACK_OR_NOT
from sframegen.cli.trees.each_file import each_file, exclusions_of, tree_options
from sframegen.elf.text import count_of
from sframegen.program.turn import FaultError

if TYPE_CHECKING:
    from linker.files.location import Location
    from linker.files.read_back import Reader
    from sframegen.api.removed import SectionRemoval


@click.command(
    name="remove-tree",
    cls=Command,
    exclusive=[VERBOSE_OR_QUIET, READ_BACK_OR_NOT],
    examples=[Example("Undo add-tree, with a line for each file", "sframegen remove-tree --verbose build/root")],
)
@tree_options(FORCE_FOREIGN)
@click.pass_context
def command(
    ctx: click.Context,
    roots: tuple[str, ...],
    *,
    globs: tuple[str, ...],
    lists: tuple[str, ...],
    force: bool,
    fatal: bool,
    verify: bool | Reader,
    preserve_timestamps: bool,
    dry_run: bool,
    jobs: int,
    verbose: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Undo add-tree: remove the SFrame section from all programs and shared libraries below each ROOT, in place.

    Each file is restored byte for byte, unless another tool has rewritten it; then only the section is removed. Symbolic links are
    not followed; hard links stay linked. GLOBs are those of add-tree. A refused file is a warning.
    """
    run = Run()
    counts: Counter[str] = Counter()
    work = partial(_remove, force=force, verify=verify, preserve_timestamps=preserve_timestamps, dry_run=dry_run)
    for names, outcome in each_file(roots, exclusions_of(globs, lists), work, jobs, verify=not dry_run and verify, lines=verbose):
        if isinstance(outcome, Exception):
            counts["refused"] += 1
            text = in_words(outcome, names[0].full)
            run.reports.append(Refused(names[0].full, text))
            if fatal or isinstance(outcome, FaultError):
                run.finding(text)
            elif not quiet:
                note(f"warning: {text}")
            continue
        counts["restored" if outcome.restored else "taken out" if outcome.section_bytes else "without"] += 1
        for warning in () if quiet else outcome.warnings:
            note(f"{names[0].full}: warning: {warning}")
        run.reports.append(outcome)
        if verbose and not as_json and (outcome.section_bytes or outcome.note):
            click.echo(outcome.one_line())
    if not (quiet or as_json):
        would_be = "would be " if dry_run else ""
        click.echo(
            f"{count_of(counts['restored'], 'file')} {would_be}restored, {counts['taken out']:,} with the section taken out, "
            f"{counts['without']:,} without one, {counts['refused']:,} refused"
        )
    if as_json:
        run.print_json()
    ctx.exit(run.status)


def _remove(
    file: Location, hard_links: list[Location], *, force: bool, verify: bool | Reader, preserve_timestamps: bool, dry_run: bool
) -> SectionRemoval:
    from sframegen import api  # noqa: PLC0415 - takes longer than to see that there is no file for it

    return api.remove(
        file, force=force, verify=verify, preserve_timestamps=preserve_timestamps, dry_run=dry_run, hard_links=hard_links
    )
