from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from linker.files.target import is_stdout
from sframegen.api.merging import Link, merge_sections
from sframegen.cli.shared.command import Command, Example
from sframegen.cli.shared.common_options import JSON_OBJECT, QUIET, VERBOSITY, CommonOptions, verbose_option
from sframegen.cli.shared.many_files import DelayedProgressBar, print_change, reserve_stdout_for
from sframegen.cli.shared.output import PathName, Run, note, suggest_command
from sframegen.cli.shared.write_options import MIN_KERNEL, NEW_OUTPUT, VERIFICATION, dry_run_option, level_option, version_option

if TYPE_CHECKING:
    from sframegen.api.options import SectionOptions, WriteOptions


@click.command(
    name="merge",
    cls=Command,
    exclusive=[VERBOSITY, ("--map", "--linker")],
    examples=[
        Example("Merge objects into one", "sframegen merge -o all.o a.o b.o"),
        Example("Merge the sections of a linked program's objects", "sframegen merge --map prog.map -o prog.new ./prog a.o b.o"),
    ],
)
@click.argument("files", metavar="[EXE] OBJ...", nargs=-1, required=True, type=PathName())
@NEW_OUTPUT
@click.option("--map", "map_file", metavar="FILE", type=PathName(), help="The linker's map (-Map) of the link that produced EXE.")
@click.option("--linker", metavar="LINKER", default="ld", show_default=True, help="Without --map: LINKER -r combines OBJs.")
@version_option()
@level_option("none")
@MIN_KERNEL
@dry_run_option("Print the plan; write nothing.")
@VERIFICATION
@verbose_option("List what was left out, and which linked files were not given.")
@QUIET
@JSON_OBJECT
@click.pass_context
def command(
    ctx: click.Context,
    files: tuple[str, ...],
    *,
    output: str,
    map_file: str | None,
    linker: str,
    section_options: SectionOptions,
    write_options: WriteOptions,
    common: CommonOptions,
) -> None:
    """Merge the SFrame sections of objects into one, as GNU ld does.

    With --map, EXE is a program or library that a linker made from the objects and archives OBJ, and the new file is EXE with the
    merged section. Functions whose code was dropped or folded are removed, those of the procedure linkage table are added. The map
    may come from GNU ld, gold, lld or mold. OBJs that were not linked are skipped; OBJs without a section are skipped and counted.

    Without --map, the new file is the relocatable object that LINKER -r makes from the OBJs, with one section, which
    linkers can merge again.
    """
    if map_file is not None and len(files) == 1:
        raise click.UsageError("--map takes EXE and its objects")
    run = Run()
    reserve_stdout_for(output)
    with run.working_on(files[0], named=True):
        objects = list(files[1:] if map_file is not None else files)
        link = Link(None if map_file is None else files[0], map_file, linker)
        with DelayedProgressBar() as bar:
            progress = bar if sys.stderr.isatty() else None
            report = merge_sections(objects, link, section_options, replace(write_options, output=output), progress)
        for warning in () if common.quiet else report.warnings:
            note(f"{output}: warning: {warning}")
        run.reports.append(report)
        if common.prints_lines:
            print_change(report, report.details() if common.verbose else (), plan=write_options.dry_run)
            if not write_options.dry_run and not is_stdout(output):
                suggest_command("sframegen check {}", output)
    if common.as_json:
        [result] = run.take_json()
        click.echo(json.dumps(result))
    ctx.exit(run.status)
