from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sframegen import api
from sframegen.cli.output import FILES, OUTPUT, OUTPUT_DIR, Run, by_file, json_list, note, outputs_of
from sframegen.cli.several import JOBS, each

if TYPE_CHECKING:
    from sframegen.removal import SectionRemoval


@click.command(name="remove")
@FILES
@OUTPUT
@OUTPUT_DIR
@JOBS
@click.option("-p", "--preserve-timestamps", is_flag=True, help="Keep the times of access and modification.")
@click.option("--force", is_flag=True, help="Take out sections that others made, too.")
@click.option("--dry-run", is_flag=True, help="Print what would change in the file; write nothing.")
@click.option("--no-verify", is_flag=True, help="Do not read the result back with LIEF: faster.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, or with several FILEs a list of them.")
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
    no_verify: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Take the SFrame section out of each FILE again.

    FILE becomes what add-section was given, byte for byte. Where another tool has written it anew since, strip for one, the section
    and its headers are taken out of what is there, and the rest stays as it is. A FILE without a section stays as it is, and -o or
    --output-dir gets a copy.
    """
    outputs = outputs_of(files, output, output_dir)
    links = {file: [] for file in files} if outputs else by_file(files)

    def remove(path: str) -> SectionRemoval:
        if output_dir is not None and not dry_run:
            Path(output_dir).mkdir(parents=True, exist_ok=True)
        return api.remove(
            path,
            output=outputs.get(path),
            verify=not no_verify,
            dry_run=dry_run,
            force=force,
            preserve_timestamps=preserve_timestamps,
            hard_links=links[path],
        )

    run = Run()
    verify, lines = not (no_verify or dry_run), not (quiet or as_json)
    removals: list[SectionRemoval] = []
    for path, removal in each(run, tuple(links), remove, jobs, verify=verify, lines=lines):
        removals.append(removal)
        if not quiet:
            for warning in removal.warnings:
                note(f"{path}: warning: {warning}")
            if not as_json:
                click.echo(removal.one_line())
                if dry_run and removal.plan is not None:
                    click.echo(str(removal.plan))
    if as_json:
        sys.stdout.writelines(json_list((iter([json.dumps(r.to_json())]) for r in removals), several=len(files) > 1))
    ctx.exit(run.status)
