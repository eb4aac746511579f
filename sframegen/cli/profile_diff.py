from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import click

from sframegen.cli.profile_report import read_profiles
from sframegen.cli.shared.command import Command, Example
from sframegen.cli.shared.common_options import JSON_OBJECT
from sframegen.cli.shared.next_step import next_to_view
from sframegen.cli.shared.output import PathName, Run
from sframegen.cli.shared.profile_output import WIDTH, refuse_closed_stdout
from sframegen.profile.report.difference import difference_graph, difference_table, share_changes
from sframegen.profile.report.formats.file_formats import check_target, write_parts
from sframegen.profile.report.grouping import GROUPS, group_stacks

if TYPE_CHECKING:
    from sframegen.cli.shared.common_options import How

HTML = ".html"


@click.command(
    name="profile-diff",
    cls=Command,
    examples=[
        Example("Print what has become slower", "sframegen profile-diff before.pb.gz after.pb.gz"),
        Example("Draw it", "sframegen profile-diff -o diff.html before.pb.gz after.pb.gz"),
    ],
)
@click.argument("before", metavar="BEFORE", type=PathName())
@click.argument("after", metavar="AFTER", type=PathName())
@click.option(
    "-o", "--output", metavar="FILE", type=PathName(), help="Draw a flame graph of both, in red and blue, to this file (.html)."
)
@click.option("--by", type=click.Choice(list(GROUPS)), default="comm", show_default=True, help="What to group stacks by.")
@JSON_OBJECT
@click.pass_context
def command(ctx: click.Context, before: str, after: str, *, output: str | None, by: str, how: How) -> None:
    """Compare two profiles: what takes a larger or a smaller share of the samples.

    BEFORE and AFTER are profiles in pprof's format, or directories that `sframegen profile --every` has written. They may differ
    in length: shares are compared.
    """
    if output is not None and not output.endswith(HTML):
        raise click.UsageError(f"--output draws a page: its name has to end with {HTML}")
    if how.as_json or output is None:
        refuse_closed_stdout()
    run = Run()
    if output is not None:
        with run.file(output):
            check_target(output)
    both = [named for path in (before, after) if (named := read_profiles(run, (path,))) is not None]
    if run.status or len(both) < 2:
        ctx.exit(1)
    old, new = (group_stacks(named, by) for named in both)
    if output is not None:
        from linker.files.location import locate  # noqa: PLC0415 - only needed here

        with run.file(output), locate(output) as target:
            write_parts((part.encode(errors="replace") for part in difference_graph(old, new)), target)
        if not (run.status or how.as_json):
            next_to_view([output])
    if how.as_json:
        rows = [change._asdict() for change in share_changes(old, new)]
        click.echo(json.dumps({"before": old.samples, "after": new.samples, "functions": rows}))
    elif output is None:
        for line in difference_table(old, new, shutil.get_terminal_size((WIDTH, 24)).columns):
            click.echo(line)
    ctx.exit(run.status)
