from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cfi.errors import SframegenError
from sframegen.cli.shared.command import Command, Example
from sframegen.cli.shared.common_options import JSON_OBJECT
from sframegen.cli.shared.output import PathName, Run
from sframegen.cli.shared.profile_output import OUTPUT, Outputs
from sframegen.profile.report.grouping import GROUPS, group_stacks
from sframegen.profile.stored.intervals import between, intervals_in, time_of
from sframegen.profile.stored.read_pprof import PprofProfiles

if TYPE_CHECKING:
    from sframegen.cli.shared.common_options import How
    from sframegen.profile.report.named import Named


def _time(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> float | None:
    try:
        return None if text is None else time_of(text, time.time())
    except SframegenError as error:
        raise click.BadParameter(str(error)) from None


def read_profiles(run: Run, files: tuple[str, ...], begin: float | None = None, end: float | None = None) -> Named | None:
    """Merge files, and of directories the profiles of intervals between two times. None: there was nothing to read."""
    profiles, number = PprofProfiles(), 0
    for path in files:
        with run.file(path):
            inner = (
                [str(Path(path, one.name)) for one in between(intervals_in(_names(path)), begin, end)]
                if Path(path).is_dir()
                else [path]
            )
            if not inner:
                raise SframegenError("no profiles of intervals are in it, or none of that time")
            for name in inner:
                with run.file(name):
                    profiles.add(Path(name).read_bytes())
                    number += 1
    return profiles.named if number else None


def _names(path: str) -> list[str]:
    return [entry.name for entry in Path(path).iterdir()]


@click.command(
    name="profile-report",
    cls=Command,
    examples=[
        Example("Show the last two hours of a profile in intervals", "sframegen profile-report --from 2h profiles"),
        Example("Draw ten minutes of it", "sframegen profile-report --from 14:30 --to 14:40 -o slow.html profiles"),
    ],
)
@click.argument("files", metavar="DIR|FILE...", nargs=-1, required=True, type=PathName())
@click.option(
    "--from", "begin", metavar="TIME", callback=_time, help="Leave out what was before: 2026-11-23T14:30, 14:30, or 2h ago."
)
@click.option("--to", "end", metavar="TIME", callback=_time, help="Leave out what was after.")
@OUTPUT
@click.option("--by", type=click.Choice(list(GROUPS)), default="comm", show_default=True, help="What to group stacks by.")
@JSON_OBJECT
@click.pass_context
def command(
    ctx: click.Context,
    files: tuple[str, ...],
    *,
    begin: float | None,
    end: float | None,
    output: tuple[str, ...],
    by: str,
    how: How,
) -> None:
    """Show profiles that are in files: all of them together, as one profile.

    DIR is a directory that `sframegen profile --every` writes; FILE is a profile in pprof's format, of any profiler. Without
    --output, the hottest functions and stacks are printed.
    """
    run = Run()
    outputs = Outputs(run, output, how.as_json)
    outputs.check()
    if run.status:
        ctx.exit(run.status)
    named = read_profiles(run, files, begin, end)
    if named is not None:
        outputs.write(group_stacks(named, by))
    ctx.exit(run.status)
