from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from sframegen.cli.shared.command import Command, Example
from sframegen.cli.shared.common_options import JSON_OBJECT, QUIET
from sframegen.cli.shared.output import SECTIONS, PathName, Run, note
from sframegen.cli.shared.write_options import OWNED
from sframegen.detached.stores import Stores
from sframegen.elf.file import open_elf

if TYPE_CHECKING:
    from sframegen.cli.shared.common_options import How


@click.command(
    name="table",
    cls=Command,
    examples=[
        Example("Write the table of a library", "sframegen table lib.so -o lib.table"),
        Example("Print how large it is", "sframegen table --json ./prog -o prog.table | jq .table_bytes"),
    ],
)
@click.argument("file", metavar="FILE", type=PathName())
@click.option("-o", "--output", metavar="FILE", type=PathName(), required=True, help=f"Write to this file. {OWNED}")
@SECTIONS
@click.option("--synthesize", is_flag=True, help="Add rules for code without call frame information, proven from its instructions.")
@QUIET
@JSON_OBJECT
@click.pass_context
def command(ctx: click.Context, file: str, output: str, *, sections: list[str], synthesize: bool, how: How) -> None:
    """Write the unwind rules of FILE as a decoded table: small, and searched without decoding, in BPF programs too.

    The rules come from FILE's SFrame section, else from a detached section, else from its call frame information. FILE is a program
    or library for x86-64 or AArch64. The C header sframe_table.h reads the table; `sframegen integration --include-dir` prints its
    directory. docs/tables.md has the layout.
    """
    from sframegen.profile.tables.write_table import write_table  # noqa: PLC0415 - not for --help

    run = Run()
    with run.file(file):
        report = write_table(open_elf(file), output, Stores(sections), synthesize=synthesize)
        for warning in () if how.quiet else report.warnings:
            note(f"warning: {warning}")
        run.reports.append(report)
        if how.prints_lines:
            click.echo(report.one_line())
    if how.as_json:
        [result] = run.taken()
        click.echo(json.dumps(result))
    ctx.exit(run.status)
