from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from sframegen import api
from sframegen.cli.shared.output import FILES, Run, print_json
from sframegen.cli.shared.several import JOBS, changes
from sframegen.cli.shared.write_options import OUTPUT, OUTPUT_DIR, verification

if TYPE_CHECKING:
    from linker.files.read_back import Reader
    from sframegen.api.removed import SectionRemoval


@click.command(name="remove")
@FILES
@OUTPUT
@OUTPUT_DIR
@JOBS
@click.option("-p", "--preserve-timestamps", is_flag=True, help="Keep the access and modification times.")
@click.option("--force", is_flag=True, help="Also remove sections that other tools produced.")
@click.option("--dry-run", is_flag=True, help="Print the changes to the file; write nothing.")
@verification
@click.option("-q", "--quiet", is_flag=True, help="Print only errors.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object, or a list of them for several FILEs.")
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
    removals: list[SectionRemoval] = []
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
        removals.append(removal)
        if not (quiet or as_json):
            click.echo(removal.one_line())
            if dry_run and removal.plan is not None:
                click.echo(str(removal.plan))
    if as_json:
        print_json(removals, several=len(files) > 1)
    ctx.exit(run.status)
