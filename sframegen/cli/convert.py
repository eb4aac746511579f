from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from sframegen import api
from sframegen.cli.shared.command import Command, Example
from sframegen.cli.shared.common_options import JSON_LIST, PRESERVE_TIMESTAMPS, QUIET, VERBOSE_OR_QUIET, dry_run, verbose
from sframegen.cli.shared.output import FILES, Run
from sframegen.cli.shared.several import JOBS, changes
from sframegen.cli.shared.write_options import (
    OUTPUT,
    OUTPUT_DIR,
    OUTPUT_OR_DIR,
    READ_BACK_OR_NOT,
    format_version,
    verification,
)

if TYPE_CHECKING:
    from linker.files.read_back import Reader
    from sframegen.api.converted import VersionChange
    from sframegen.format.layouts import FormatVersion


@click.command(
    name="convert",
    cls=Command,
    exclusive=[VERBOSE_OR_QUIET, OUTPUT_OR_DIR, READ_BACK_OR_NOT],
    examples=[Example("Write a copy with version 2, for glibc 2.42", "sframegen convert --format 2 -o prog.v2 ./prog")],
)
@FILES
@format_version(default=None)
@OUTPUT
@OUTPUT_DIR
@JOBS
@PRESERVE_TIMESTAMPS
@dry_run()
@verification
@verbose("List what was left out, and why.")
@QUIET
@JSON_LIST
@click.pass_context
def command(
    ctx: click.Context,
    files: tuple[str, ...],
    *,
    version: FormatVersion,
    output: str | None,
    output_dir: str | None,
    jobs: int,
    preserve_timestamps: bool,
    dry_run: bool,
    verify: bool | Reader,
    verbose: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Rewrite the SFrame section of each FILE in another version of the format, in place.

    The section may have version 1, 2 or 3 and may come from any tool. Rules that the new version cannot express are left out
    and counted: in version 2 flexible rules, signal frames and outermost frames. A FILE is refused if the new section does not
    fit in the place of the old one, and replaced only when the new file is complete and verified. A FILE that already has the
    version is left unchanged; with -o or --output-dir it is copied.
    """
    run = Run()
    for change in changes(
        run,
        files,
        partial(api.convert, version=version),
        output=output,
        output_dir=output_dir,
        jobs=jobs,
        preserve_timestamps=preserve_timestamps,
        dry_run=dry_run,
        verify=verify,
        quiet=quiet,
        as_json=as_json,
    ):
        if not (quiet or as_json):
            _print(change, verbose=verbose, plan=dry_run)
    if as_json:
        run.print_json()
    ctx.exit(run.status)


def _print(change: VersionChange, *, verbose: bool, plan: bool) -> None:
    click.echo(change.one_line())
    for line in change.details() if verbose else ():
        click.echo(line)
    if plan and change.plan is not None:
        click.echo(str(change.plan))
