from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from sframegen import api
from sframegen.cli.shared.output import FILES, Run, print_json
from sframegen.cli.shared.several import JOBS, changes
from sframegen.cli.shared.write_options import OUTPUT, OUTPUT_DIR, VERSIONS, verification

if TYPE_CHECKING:
    from linker.files.read_back import Reader
    from sframegen.api.converted import VersionChange


@click.command(name="convert")
@FILES
@click.option("--format", "version", type=VERSIONS, required=True, help="The SFrame version to write.")
@OUTPUT
@OUTPUT_DIR
@JOBS
@click.option("-p", "--preserve-timestamps", is_flag=True, help="Keep the access and modification times.")
@click.option("--dry-run", is_flag=True, help="Print the changes to the file; write nothing.")
@verification
@click.option("-v", "--verbose", is_flag=True, help="List what was left out, and why.")
@click.option("-q", "--quiet", is_flag=True, help="Print only errors.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object, or a list of them for several FILEs.")
@click.pass_context
def command(
    ctx: click.Context,
    files: tuple[str, ...],
    *,
    version: str,
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
    reports: list[VersionChange] = []
    for change in changes(
        run,
        files,
        partial(api.convert, version=int(version)),
        output=output,
        output_dir=output_dir,
        jobs=jobs,
        preserve_timestamps=preserve_timestamps,
        dry_run=dry_run,
        verify=verify,
        quiet=quiet,
        as_json=as_json,
    ):
        reports.append(change)
        if not (quiet or as_json):
            _print(change, verbose=verbose, plan=dry_run)
    if as_json:
        print_json(reports, several=len(files) > 1)
    ctx.exit(run.status)


def _print(change: VersionChange, *, verbose: bool, plan: bool) -> None:
    click.echo(change.one_line())
    for line in change.details() if verbose else ():
        click.echo(line)
    if plan and change.plan is not None:
        click.echo(str(change.plan))
