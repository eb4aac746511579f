from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from sframegen import api
from sframegen.cli.shared.output import PathName, Run, note, print_json
from sframegen.cli.shared.several import Bar, leave_stdout_to
from sframegen.cli.shared.write_options import MIN_KERNEL, VERSIONS, level, verification

if TYPE_CHECKING:
    from linker.files.read_back import Reader
    from sframegen.tables.optimize import LevelName


@click.command(name="merge")
@click.argument("files", metavar="[EXE] OBJ...", nargs=-1, required=True, type=PathName())
@click.option("-o", "--output", metavar="OUT", type=PathName(), required=True, help="Write to this file.")
@click.option("--map", "map_file", metavar="MAP", type=PathName(), help="The linker's map (-Map) of the link that produced EXE.")
@click.option("--linker", metavar="LD", default="ld", show_default=True, help="Without --map: the linker whose -r combines OBJs.")
@click.option("--format", "version", type=VERSIONS, default="3", show_default=True, help="The SFrame version to write.")
@level("none")
@MIN_KERNEL
@click.option("--dry-run", is_flag=True, help="Print the plan; write nothing.")
@verification
@click.option("-v", "--verbose", is_flag=True, help="List what was left out, and which linked files were not given.")
@click.option("-q", "--quiet", is_flag=True, help="Print only errors.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.pass_context
def command(
    ctx: click.Context,
    files: tuple[str, ...],
    *,
    output: str,
    map_file: str | None,
    linker: str,
    version: str,
    optimize: LevelName,
    min_kernel: str | None,
    dry_run: bool,
    verify: bool | Reader,
    verbose: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Merge the SFrame sections of objects into one, as GNU ld does.

    With --map, EXE is a program or library that a linker made from the objects and archives OBJ, and OUT is EXE with the merged
    section. Functions whose code was dropped or folded are removed, those of the procedure linkage table are added. The map may
    come from GNU ld, gold, lld or mold. OBJs that were not linked are skipped; OBJs without a section are skipped and counted.

    Without --map, OUT is the relocatable object that LD -r makes from the OBJs, with one section, which linkers can merge again.
    """
    if map_file is not None and len(files) == 1:
        raise click.UsageError("--map takes EXE and its objects")
    run = Run()
    leave_stdout_to(output)
    with run.file(files[0]):
        executable = files[0] if map_file is not None else None
        objects = files[1:] if map_file is not None else files
        with Bar() as bar:
            report = api.merge(
                objects,
                output,
                executable=executable,
                map_file=map_file,
                linker=linker,
                version=int(version),
                optimize=optimize,
                min_kernel=min_kernel,
                verify=verify,
                dry_run=dry_run,
                progress=bar if sys.stderr.isatty() else None,
            )
        for warning in () if quiet else report.warnings:
            note(f"{output}: warning: {warning}")
        if as_json:
            print_json([report], several=False)
        elif not quiet:
            click.echo(report.one_line())
            for line in report.details() if verbose else ():
                click.echo(line)
            if dry_run and report.plan is not None:
                click.echo(str(report.plan))
    ctx.exit(run.status)
