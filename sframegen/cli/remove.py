from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from sframegen import api
from sframegen.cli.shared.command import Command, Example
from sframegen.cli.shared.common_options import FORCE_FOREIGN, JSON_LIST, PRESERVE_TIMESTAMPS, QUIET, dry_run
from sframegen.cli.shared.output import FILES, Run
from sframegen.cli.shared.several import JOBS, changes
from sframegen.cli.shared.write_options import OUTPUT, OUTPUT_DIR, OUTPUT_OR_DIR, READ_BACK_OR_NOT, verification

if TYPE_CHECKING:
    from linker.files.read_back import Reader


@click.command(
    name="remove",
    cls=Command,
    exclusive=[OUTPUT_OR_DIR, READ_BACK_OR_NOT],
    examples=[
        Example("Restore a program as it was before add-section", "sframegen remove ./prog"),
        Example("Print what would change", "sframegen remove --dry-run prog lib.so"),
    ],
)
@FILES
@OUTPUT
@OUTPUT_DIR
@JOBS
@PRESERVE_TIMESTAMPS
@FORCE_FOREIGN
@dry_run()
@verification
@QUIET
@JSON_LIST
@click.pass_context
def command(
    ctx: click.Context,
    files: tuple[str, ...],
    *,
    output: str | None,
    output_dir: str | None,
    jobs: int,
    preserve_timestamps: bool,
    force: bool,
    dry_run: bool,
    verify: bool | Reader,
    quiet: bool,
    as_json: bool,
) -> None:
    """Remove the SFrame section from each FILE.

    FILE is restored as it was before add-section, byte for byte. If another tool, such as strip, has rewritten it, only the
    section and its headers are removed. A FILE without a section is left unchanged; with -o or --output-dir it is copied. FILE
    may also be an object, an archive or a package.
    """
    run = Run()
    for removal in changes(
        run,
        files,
        partial(api.remove, force=force),
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
            click.echo(removal.one_line())
            if dry_run and removal.plan is not None:
                click.echo(str(removal.plan))
    if as_json:
        run.print_json()
    ctx.exit(run.status)
